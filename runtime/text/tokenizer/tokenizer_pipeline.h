// The sections of a tokenizer.json other than its model. Forms that are not supported are refused
// by name, as tokenizer_file.h says.
#pragma once

#include "runtime/text/tokenizer/json_path.h"
#include "runtime/text/tokenizer/tokenizer_file.h"

namespace millrace {

void ReadNormalizer(const JsonPath& at, TokenizerFile& file);
void ReadPreTokenizer(const JsonPath& at, TokenizerFile& file);
// Behind vocabulary and added tokens: a template's ids must be among them.
void ReadPostProcessor(const JsonPath& at, TokenizerFile& file);
void ReadDecoder(const JsonPath& at);

}  // namespace millrace
