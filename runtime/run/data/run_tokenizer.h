// The tokenizer that a configuration names: data.tokenizer.
#pragma once

#include <memory>
#include <string>

#include "runtime/config/config.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace millrace {

// nullptr for bytes. Errors: kData, a file that cannot be read; kConfig, one with more tokens than
// model.vocab.
std::shared_ptr<const Tokenizer> TokenizerOf(const Config& config);

// Whether texts are bytes to the model. Without a tokenizer those of token files are not known.
bool TextIsBytes(const Config& config);

// Its hash() by the file's bytes alone; "" for bytes.
std::string TokenizerHash(const Config& config);

}  // namespace millrace
