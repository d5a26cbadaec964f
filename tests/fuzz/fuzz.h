// What the fuzz targets of this folder share. A target is one file that defines
// LLVMFuzzerTestOneInput: libFuzzer calls it (tools/fuzz), and so does replay.cc for the inputs in
// corpus/ (an ordinary test).
//
// Properties  A target aborts where one does not hold, which is what libFuzzer takes for a finding.
//             Those of all: what is refused is refused by a millrace::Error with a message and one
//             of the codes that its header names, and memory stays in proportion to the input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace millrace::fuzz {

[[noreturn]] void Fail(const char* file, int line, const std::string& what);

// Whether `call` returned; false: it threw an Error with a message and one of these codes. Any
// other exception leaves.
bool Accepts(std::initializer_list<ErrorCode> codes, const std::function<void()>& call);

// Aborts if more than 4 MiB and 4 KiB for each byte of the input have been allocated at one time
// since it was made. One at a time; under sanitizers only.
class MemoryLimit {
 public:
  explicit MemoryLimit(size_t input_bytes);
  ~MemoryLimit();
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
};

// A file in memory that has a name, for readers that take a path.
class MemoryFile {
 public:
  MemoryFile();
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const std::string& path() const { return path_; }
  void Set(std::string_view content);

 private:
  int fd_;
  std::string path_;
};

// `count` files in one input: they stand between lines "%%". What is missing is empty;
// the last has what is left.
std::vector<std::string_view> Parts(std::string_view input, size_t count);

// Values drawn from an input, front to back; zeros and empty texts after its end.
class ByteSource {
 public:
  explicit ByteSource(std::string_view input) : left_(input) {}

  bool empty() const { return left_.empty(); }
  uint64_t Integer(int bytes);  // little endian, 1 to 8 of them
  int64_t Below(int64_t end);   // in [0, end)
  double Number();              // any bit pattern
  std::string Text();           // a length byte, then so many bytes
  std::string_view Rest() { return left_; }

 private:
  std::string_view left_;
};

}  // namespace millrace::fuzz

#define FUZZ_REQUIRE(condition)                               \
  do {                                                        \
    if (!(condition)) [[unlikely]]                            \
      ::millrace::fuzz::Fail(__FILE__, __LINE__, #condition); \
  } while (false)
