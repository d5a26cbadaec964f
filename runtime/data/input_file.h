// A regular file, open for reading at offsets. Everything that the runtime reads goes through here:
// pread and not mmap, because a file that shrinks or a disk that fails under a mapping is a SIGBUS,
// and here an Error that names the file.
//
// Errors   The constructor's `code` (kData, kCheckpoint, ...) when the file is missing, unreadable,
//          not a regular file, or ends before what is asked for; kIo when the machine fails.
// Threads  Read may be called from several threads at once.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/error.h"

namespace millrace {

class InputFile {
 public:
  InputFile(std::string path, ErrorCode code);  // symbolic links are followed
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;

  const std::string& path() const noexcept { return path_; }
  int64_t size() const noexcept { return size_; }  // in bytes, when it was opened

  // out[0, bytes) = file[offset, offset + bytes).
  void Read(int64_t offset, void* out, int64_t bytes) const;

 private:
  std::string path_;
  ErrorCode code_;
  int fd_;
  int64_t size_;
};

// Whether a name is there, and what leads to it can be searched.
bool FileExists(const std::string& path);

// All of a small file; larger than `max_bytes` is an Error(code).
std::string ReadWholeFile(const std::string& path, int64_t max_bytes, ErrorCode code);

}  // namespace millrace
