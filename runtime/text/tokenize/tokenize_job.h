// Files of documents (document_encoder.h) to token files: all cores, the same bytes whatever their
// number, and to be gone on with after an interruption.
//
// The folder gets tokens_*.bin (token_writer.h), of conversations their masks, and tokens.json,
// which says what they were made of and from where to go on; it is written before the first file
// and after each. A file ends behind the first block (text_blocks.h) with which it has
// `file_tokens` tokens.
//
// Errors  kData: what TextBlocks and DocumentEncoder say; a damaged tokens.json. kConfig: a folder
//         of another job's files, naming what differs, or one that another job is at work in (it is
//         locked); a template whose tokens the tokenizer lacks. kIo.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/data/file_system.h"
#include "runtime/data/tokens/token_files.h"
#include "runtime/text/tokenize/document_encoder.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace millrace {

struct TokenizeOptions {
  std::vector<std::string> inputs;  // files, in order
  std::string folder;
  DocumentOptions documents = {};
  int64_t file_tokens = 100'000'000;  // of a file, about
  int threads = 1;
};

struct TokenizeProgress {
  int64_t bytes = 0, total_bytes = 0;  // of the input files
  int64_t resumed_bytes = 0;           // of `bytes`, done by an earlier call
  int64_t tokens = 0;                  // so far
};

struct TokenizeResult {
  int64_t files = 0, tokens = 0, documents = 0, text_bytes = 0;
  int64_t targets = 0;         // tokens that masks let count; 0 without masks
  bool nothing_to_do = false;  // an earlier call had finished
  std::string warning = {};    // the folder could not be locked, as RunLock says; "": it was
};

// What ids are of: a tokenizer, or without one whatever is below `vocab`, for lists of ids alone.
struct IdSpace {
  IdSpace(const Tokenizer& tokenizer)
      : tokenizer(&tokenizer), stamp{tokenizer.hash(), tokenizer.vocab_size()} {}
  explicit IdSpace(int64_t vocab) : stamp{"", vocab} {}

  const Tokenizer* tokenizer = nullptr;
  TokenStamp stamp;
};

TokenizeResult RunTokenizeJob(const IdSpace& ids, const TokenizeOptions& options, FileSystem& files,
                              const std::function<void(const TokenizeProgress&)>& progress);

}  // namespace millrace
