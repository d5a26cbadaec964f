#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <utility>

// Of the sanitizers' runtime; absent from other builds, where MemoryLimit does nothing.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*, size_t),
                                                         void (*)(const volatile void*))
    __attribute__((weak));
extern "C" size_t __sanitizer_get_allocated_size(const volatile void*) __attribute__((weak));

namespace millrace::fuzz {
namespace {

constexpr int64_t kAllowedBytes = int64_t{4} << 20, kAllowedPerByte = int64_t{4} << 10;
std::atomic<int64_t> live_bytes{0};
std::atomic<int64_t> most_bytes{INT64_MAX};  // live_bytes above this is a finding

void Allocated(const volatile void* memory, size_t bytes) {
  if (memory == nullptr || (live_bytes += static_cast<int64_t>(bytes)) <= most_bytes) return;
  most_bytes = INT64_MAX;  // saying so allocates, too
  Fail(__FILE__, __LINE__,
       "memory in proportion to the input; the last allocation was " + std::to_string(bytes));
}

void Freed(const volatile void* memory) {
  if (memory != nullptr) live_bytes -= static_cast<int64_t>(__sanitizer_get_allocated_size(memory));
}

}  // namespace

void Fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: property does not hold: %s\n", file, line, what.c_str());
  std::abort();
}

bool Accepts(std::initializer_list<ErrorCode> codes, const std::function<void()>& call) {
  try {
    call();
    return true;
  } catch (const Error& error) {
    const bool known = std::find(codes.begin(), codes.end(), error.code()) != codes.end();
    if (!known || *error.what() == '\0')
      Fail(__FILE__, __LINE__,
           std::string("an error of code ") + Name(error.code()) + ": " + error.what());
    return false;
  }
}

MemoryLimit::MemoryLimit(size_t input_bytes) {
  static const bool counts = __sanitizer_install_malloc_and_free_hooks != nullptr &&
                             __sanitizer_install_malloc_and_free_hooks(Allocated, Freed) != 0;
  if (!counts) return;
  most_bytes = live_bytes + kAllowedBytes + kAllowedPerByte * static_cast<int64_t>(input_bytes);
}
MemoryLimit::~MemoryLimit() { most_bytes = INT64_MAX; }

MemoryFile::MemoryFile() : fd_(::memfd_create("millrace_fuzz", MFD_CLOEXEC)) {
  if (fd_ < 0) Fail(__FILE__, __LINE__, "memfd_create");
  path_ = "/proc/self/fd/" + std::to_string(fd_);
}
MemoryFile::~MemoryFile() { ::close(fd_); }

void MemoryFile::Set(std::string_view content) {
  if (::ftruncate(fd_, 0) != 0) Fail(__FILE__, __LINE__, "ftruncate");
  if (::pwrite(fd_, content.data(), content.size(), 0) != static_cast<ssize_t>(content.size()))
    Fail(__FILE__, __LINE__, "pwrite");
}

std::vector<std::string_view> Parts(std::string_view input, size_t count) {
  constexpr std::string_view kBorder = "%%\n";
  std::vector<std::string_view> parts;
  while (parts.size() + 1 < count) {
    size_t border = input.find(kBorder);
    while (border != input.npos && border != 0 && input[border - 1] != '\n')
      border = input.find(kBorder, border + 1);
    parts.push_back(input.substr(0, border));
    input = border == input.npos ? std::string_view() : input.substr(border + kBorder.size());
  }
  parts.push_back(input);
  return parts;
}

uint64_t ByteSource::Integer(int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes && !left_.empty(); ++i) {
    value |= static_cast<uint64_t>(static_cast<unsigned char>(left_.front())) << (8 * i);
    left_.remove_prefix(1);
  }
  return value;
}

int64_t ByteSource::Below(int64_t end) {
  return static_cast<int64_t>(Integer(end <= 256 ? 1 : 4) % static_cast<uint64_t>(end));
}

double ByteSource::Number() { return std::bit_cast<double>(Integer(8)); }

std::string ByteSource::Text() {
  const uint64_t wanted = Integer(1);
  const size_t size = std::min<size_t>(wanted, left_.size());
  std::string text(left_.substr(0, size));
  left_.remove_prefix(size);
  return text;
}

}  // namespace millrace::fuzz
