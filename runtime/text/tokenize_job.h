// Text files to token files: all cores, the same bytes whatever their number, and to be gone on
// with after an interruption.
//
// The folder gets tokens_*.bin (token_writer.h) and tokens.json, which says what they were made of
// and from where to go on; it is written before the first file and after each. A file ends behind
// the first block (text_blocks.h) with which it has `file_tokens` tokens.
//
// Errors  kData: what TextBlocks says; a damaged tokens.json. kConfig: a folder of another job's
//         files, naming what differs, or one that another job is at work in (it is locked). kIo.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/file_system.h"
#include "runtime/text/text_encoder.h"
#include "runtime/text/tokenizer.h"

namespace millrace {

struct TokenizeOptions {
  std::vector<std::string> inputs;  // files, in order
  std::string folder;
  std::string field = "text";                 // of JSONL
  std::optional<int32_t> separator;           // an id behind each document
  SpecialText special = SpecialText::kPlain;  // of documents
  int64_t file_tokens = 100'000'000;          // of a file, about
  int threads = 1;
};

struct TokenizeProgress {
  int64_t bytes = 0, total_bytes = 0;  // of the input files
  int64_t resumed_bytes = 0;           // of `bytes`, done by an earlier call
  int64_t tokens = 0;                  // so far
};

struct TokenizeResult {
  int64_t files = 0, tokens = 0, documents = 0, text_bytes = 0;
  bool nothing_to_do = false;  // an earlier call had finished
  std::string warning = {};    // the folder could not be locked, as RunLock says; "": it was
};

TokenizeResult RunTokenizeJob(const Tokenizer& tokenizer, const TokenizeOptions& options,
                              FileSystem& files,
                              const std::function<void(const TokenizeProgress&)>& progress);

}  // namespace millrace
