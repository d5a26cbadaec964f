// What is behind a mr_tokenizer.
#pragma once

#include <mutex>
#include <string>

#include "runtime/api/c/handle_table.h"
#include "runtime/text/tokenizer/text_encoder.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace millrace {

struct OpenedTokenizer {
  explicit OpenedTokenizer(const std::string& path)
      : tokenizer(Tokenizer::Load(path)), encoder(tokenizer) {}

  const Tokenizer tokenizer;
  std::mutex one_text;  // of `encoder`, which remembers pieces
  TextEncoder encoder;
};

using TokenizerHandles = HandleTable<mr_tokenizer, OpenedTokenizer>;

}  // namespace millrace
