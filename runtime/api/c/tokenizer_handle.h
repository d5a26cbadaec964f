// What is behind a mr_tokenizer.
#pragma once

#include <mutex>
#include <string>

#include "runtime/text/tokenizer/text_encoder.h"
#include "runtime/text/tokenizer/tokenizer.h"

struct mr_tokenizer {
  explicit mr_tokenizer(const std::string& path)
      : tokenizer(millrace::Tokenizer::Load(path)), encoder(tokenizer) {}

  const millrace::Tokenizer tokenizer;
  std::mutex one_text;  // of `encoder`, which remembers pieces
  millrace::TextEncoder encoder;
};
