// tokens.json: what a folder's token files were made of, and where a job that was interrupted goes
// on.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/text/tokenize/text_blocks.h"
#include "runtime/text/tokenize/tokenize_job.h"

namespace millrace {

struct TokenizeState {
  struct File {
    std::string name;
    int64_t tokens;
  };
  std::vector<File> files;
  TextPlace next;  // where the first file that is missing begins
  int64_t documents = 0, text_bytes = 0, targets = 0;
  bool done = false;

  int64_t Tokens() const;
};

// The folder's state for this job; a fresh one if there is none, or one of another job without a
// token file yet. Errors: kConfig if it is another job's, kData if it is damaged, its files are not
// as it says or an input is missing.
TokenizeState LoadTokenizeState(const TokenStamp& stamp, const TokenizeOptions& options);

void SaveTokenizeState(const TokenStamp& stamp, const TokenizeOptions& options,
                       const TokenizeState& state, FileSystem& files);

}  // namespace millrace
