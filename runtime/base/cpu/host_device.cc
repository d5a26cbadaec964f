#include "runtime/base/cpu/host_device.h"

#include <cstdlib>
#include <cstring>

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr int64_t kAlignment = 4096;

template <class Base>
class AlignedBuffer final : public Base {
 public:
  AlignedBuffer(int64_t bytes, const std::string& label) : bytes_(bytes) {
    const int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    data_ = static_cast<std::byte*>(
        std::aligned_alloc(kAlignment, static_cast<size_t>(rounded > 0 ? rounded : kAlignment)));
    MR_REQUIRE(ErrorCode::kOutOfMemory, data_ != nullptr, "cannot allocate {} bytes of host memory for {}",
               bytes, label);
  }
  ~AlignedBuffer() override { std::free(data_); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
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
  int64_t UsedBytes() const override { return 0; }
  std::unique_ptr<DeviceBuffer> Allocate(int64_t bytes, const std::string& label) override {
    return std::make_unique<AlignedBuffer<DeviceBuffer>>(bytes, label);
  }
  std::unique_ptr<HostBuffer> AllocateHost(int64_t bytes, const std::string& label) override {
    return std::make_unique<AlignedBuffer<HostBuffer>>(bytes, label);
  }
  std::unique_ptr<Stream> MakeStream(const std::string&) override { return std::make_unique<HostStream>(); }
  std::unique_ptr<Event> MakeEvent() override { return std::make_unique<HostEvent>(); }
  void SyncEvent(const Event&) override {}
  void CopyToHost(void* host, const std::byte* device, int64_t bytes, Stream&) override {
    std::memcpy(host, device, static_cast<size_t>(bytes));
  }
  void CopyFromHost(std::byte* device, const void* host, int64_t bytes, Stream&) override {
    std::memcpy(device, host, static_cast<size_t>(bytes));
  }
  void EnqueueToHost(std::byte* pinned, const std::byte* device, int64_t bytes, Stream&) override {
    std::memcpy(pinned, device, static_cast<size_t>(bytes));
  }
  void EnqueueFromHost(std::byte* device, const std::byte* pinned, int64_t bytes, Stream&) override {
    std::memcpy(device, pinned, static_cast<size_t>(bytes));
  }
  void EnqueueFill(std::byte* device, std::byte value, int64_t bytes, Stream&) override {
    std::memset(device, static_cast<int>(value), static_cast<size_t>(bytes));
  }
  bool captures() const override { return false; }
  void BeginCapture(Stream&) override { MR_CHECK(false, "host streams cannot be captured"); }
  std::unique_ptr<Graph> EndCapture(Stream&) override {
    MR_CHECK(false, "host streams cannot be captured");
    return nullptr;
  }
};

}  // namespace

std::unique_ptr<Device> MakeHostDevice() { return std::make_unique<HostDevice>(); }

}  // namespace millrace
