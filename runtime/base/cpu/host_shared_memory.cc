#include "runtime/base/cpu/host_shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/arithmetic.h"
#include "runtime/base/cpu/host_pages.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

class HostSharedMemory final : public SharedMemory {
 public:
  HostSharedMemory(int64_t bytes, std::string label)
      : bytes_(RoundUp(std::max<int64_t>(bytes, 1), HostPageBytes())), label_(std::move(label)) {
    descriptor_ = memfd_create("millrace", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    try {
      Require(descriptor_ >= 0, "memfd_create");
      // Its pages now, and not a SIGBUS when one is written for which there is no room.
      Require((errno = posix_fallocate(descriptor_, 0, bytes_)) == 0, "posix_fallocate");
      data_ = mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE, MAP_SHARED,
                   descriptor_, 0);
      Require(data_ != MAP_FAILED, "mmap");
    } catch (...) {  // no destructor will
      if (descriptor_ >= 0) close(descriptor_);
      throw;
    }
  }
  ~HostSharedMemory() override {
    Unmap();
    if (descriptor_ >= 0) close(descriptor_);
  }
  HostSharedMemory(const HostSharedMemory&) = delete;
  HostSharedMemory& operator=(const HostSharedMemory&) = delete;
  int64_t bytes() const noexcept override { return bytes_; }
  const std::string& gpu() const noexcept override { return none_; }

  std::byte* data() noexcept override {
    return data_ == MAP_FAILED ? nullptr : static_cast<std::byte*>(data_);
  }

  int Share() override {
    MR_CHECK(data_ != MAP_FAILED, "{} is shared twice", label_);
    Unmap();  // what is mapped to be written cannot be sealed
    MR_REQUIRE(ErrorCode::kDevice,
               fcntl(descriptor_, F_ADD_SEALS,
                     F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) == 0,
               "cannot seal the memory of {}: {}", label_, std::strerror(errno));
    return std::exchange(descriptor_, -1);
  }

 private:
  void Require(bool done, const char* call) const {
    MR_REQUIRE(ErrorCode::kOutOfMemory, done,
               "cannot allocate {} bytes of host memory for {}: {}: "
               "{}",
               bytes_, label_, call, std::strerror(errno));
  }
  void Unmap() {
    if (data_ != MAP_FAILED) munmap(std::exchange(data_, MAP_FAILED), static_cast<size_t>(bytes_));
  }

  const int64_t bytes_;
  const std::string label_, none_;
  int descriptor_ = -1;
  void* data_ = MAP_FAILED;
};

}  // namespace

std::unique_ptr<SharedMemory> MakeHostSharedMemory(int64_t bytes, const std::string& label) {
  return std::make_unique<HostSharedMemory>(bytes, label);
}

}  // namespace millrace
