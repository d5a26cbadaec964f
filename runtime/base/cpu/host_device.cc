#include "runtime/base/cpu/host_device.h"

#include <cstdlib>
#include <cstring>

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr int64_t kAlignment = 4096;

class HostBuffer final : public DeviceBuffer {
 public:
  HostBuffer(int64_t bytes, const std::string& label) : bytes_(bytes) {
    const int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    data_ = static_cast<std::byte*>(
        std::aligned_alloc(kAlignment, static_cast<size_t>(rounded > 0 ? rounded : kAlignment)));
    MR_REQUIRE(ErrorCode::kOutOfMemory, data_ != nullptr, "cannot allocate {} bytes of host memory for {}",
               bytes, label);
  }
  ~HostBuffer() override { std::free(data_); }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  std::byte* data() const noexcept override { return data_; }
  int64_t bytes() const noexcept override { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_;
};

class HostEvent final : public Event {};

class HostStream final : public Stream {
 public:
  void Record(Event&) override {}
  void Wait(const Event&) override {}
  void Sync() override {}
};

class HostDevice final : public Device {
 public:
  std::string name() const override { return "cpu"; }
  std::unique_ptr<DeviceBuffer> Allocate(int64_t bytes, const std::string& label) override {
    return std::make_unique<HostBuffer>(bytes, label);
  }
  std::unique_ptr<Stream> MakeStream(const std::string&) override { return std::make_unique<HostStream>(); }
  std::unique_ptr<Event> MakeEvent() override { return std::make_unique<HostEvent>(); }
  void CopyToHost(void* host, const std::byte* device, int64_t bytes, Stream&) override {
    std::memcpy(host, device, static_cast<size_t>(bytes));
  }
  void CopyFromHost(std::byte* device, const void* host, int64_t bytes, Stream&) override {
    std::memcpy(device, host, static_cast<size_t>(bytes));
  }
};

}  // namespace

std::unique_ptr<Device> MakeHostDevice() { return std::make_unique<HostDevice>(); }

}  // namespace millrace
