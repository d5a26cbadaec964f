#include "runtime/base/cpu/host_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

class HostPages final : public PagedBuffer {
 public:
  HostPages(int64_t bytes, std::string label)
      : bytes_(bytes),
        mapped_(RoundUp(std::max<int64_t>(bytes, 1), HostPageBytes())),
        label_(std::move(label)) {
    void* const data = mmap(nullptr, static_cast<size_t>(mapped_), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MR_REQUIRE(ErrorCode::kOutOfMemory, data != MAP_FAILED,
               "cannot allocate {} bytes of host memory for {}: {}", bytes, label_,
               std::strerror(errno));
    data_ = static_cast<std::byte*>(data);
  }
  ~HostPages() override { munmap(data_, static_cast<size_t>(mapped_)); }
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;
  std::byte* data() const noexcept override { return data_; }
  int64_t bytes() const noexcept override { return bytes_; }

  // A new mapping in place of the old one frees its pages, and keeps others out of the addresses.
  void Unmap(int64_t begin, int64_t end) override {
    Check(begin, end);
    if (begin == end) return;
    void* const at = mmap(data_ + begin, static_cast<size_t>(end - begin), PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    MR_REQUIRE(ErrorCode::kDevice, at == data_ + begin, "cannot give back {} bytes of {}: {}",
               end - begin, label_, std::strerror(errno));
  }
  // A mapping of its own again: where the system counts what it has promised, this one counts.
  void Map(int64_t begin, int64_t end) override {
    Check(begin, end);
    if (begin == end) return;
    void* const at = mmap(data_ + begin, static_cast<size_t>(end - begin), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    MR_REQUIRE(ErrorCode::kOutOfMemory, at == data_ + begin,
               "cannot allocate {} bytes of host memory for {} again: {}", end - begin, label_,
               std::strerror(errno));
  }

 private:
  void Check(int64_t begin, int64_t end) const {
    MR_CHECK(0 <= begin && begin <= end && end <= mapped_ && begin % HostPageBytes() == 0 &&
                 end % HostPageBytes() == 0,
             "[{}, {}) of {} are no pages of its {} bytes", begin, end, label_, mapped_);
  }

  std::byte* data_ = nullptr;
  const int64_t bytes_, mapped_;
  const std::string label_;
};

}  // namespace

int64_t HostPageBytes() { return sysconf(_SC_PAGESIZE); }

std::unique_ptr<PagedBuffer> AllocateHostPages(int64_t bytes, const std::string& label,
                                               std::span<const int64_t> /*cuts*/) {
  return std::make_unique<HostPages>(bytes, label);
}

}  // namespace millrace
