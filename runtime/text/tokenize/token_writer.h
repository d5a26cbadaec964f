// Token files in llm.c's format (runtime/data/tokens/token_files.h), a numbered series of them in a
// folder: tokens_000000.bin, ... The header has the tokenizer's stamp, so that a run can see that
// ids are its own tokenizer's. Beside each may be a mask of its targets, tokens_000000.mask
// (runtime/data/tokens/loss_mask.h).
//
// A file has another name until it is whole and durable, and its mask, which is there first: what
// tokens_*.bin there is may be read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/file_system.h"
#include "runtime/data/tokens/token_files.h"

namespace millrace {

class TokenWriter {
 public:
  // Files from number `first` on; leftovers of earlier ones that were not finished are replaced.
  // Ids below 2^16 are two bytes each, if `stamp.vocab` says so, else four. A stamp without a
  // tokenizer is not written.
  TokenWriter(FileSystem& files, std::string folder, const TokenStamp& stamp, int64_t first);
  ~TokenWriter();

  // mask: of each id, or empty; alike in all calls.
  void Append(std::span<const int32_t> ids, std::span<const uint8_t> mask = {});
  int64_t count() const noexcept { return count_; }  // tokens in the file that is open

  struct Written {
    std::string name;  // in the folder
    int64_t tokens;
  };
  Written Finish();  // publishes the open file, which has tokens; the next Append begins another

 private:
  void Flush();
  std::string Name(const char* ending) const;
  std::unique_ptr<OutputFile> Open(const char* ending) const;
  void Publish(OutputFile& file, const char* ending) const;

  FileSystem& files_;
  std::string folder_;
  TokenStamp stamp_;
  int64_t bytes_per_token_;
  int64_t number_;
  int64_t count_ = 0, flushed_bytes_ = 0;
  std::unique_ptr<OutputFile> file_;       // null: none is open
  std::unique_ptr<OutputFile> mask_file_;  // null: none is open, or there are no masks
  std::vector<char> buffer_;
  std::vector<uint8_t> mask_buffer_;  // ends with buffer_'s last id
};

}  // namespace millrace
