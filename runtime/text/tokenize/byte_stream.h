// The bytes of a text file from front to back, decompressed: .gz (zlib, several members) and .zst
// (libzstd, several frames) by their names, all others as they are.
//
// Errors  kData: damaged or cut-off compressed data, with the file and the place in it; missing
//         files. kIo: the machine fails.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace millrace {

class ByteStream {
 public:
  virtual ~ByteStream() = default;

  // Up to `bytes` of the text, fewer only at its end; returns how many.
  virtual int64_t Read(char* out, int64_t bytes) = 0;

  virtual int64_t file_bytes() const noexcept = 0;  // of the file
  virtual int64_t consumed() const noexcept = 0;    // of them, so far: for progress
};

std::unique_ptr<ByteStream> OpenByteStream(const std::string& path);

// Reads on and forgets. Errors: kData if the text ends before.
void SkipBytes(ByteStream& stream, int64_t bytes, const std::string& path);

}  // namespace millrace
