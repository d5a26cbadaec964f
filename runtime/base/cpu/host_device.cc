#include "runtime/base/cpu/host_device.h"

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "runtime/base/arithmetic.h"
#include "runtime/base/cpu/host_pages.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kAlignment = 4096;

template <class Base>
class AlignedBuffer final : public Base {
 public:
  AlignedBuffer(int64_t bytes, const std::string& label) : bytes_(bytes) {
    const int64_t rounded = RoundUp(bytes, kAlignment);
    data_ = static_cast<std::byte*>(
        std::aligned_alloc(kAlignment, static_cast<size_t>(rounded > 0 ? rounded : kAlignment)));
    MR_REQUIRE(ErrorCode::kOutOfMemory, data_ != nullptr,
               "cannot allocate {} bytes of host memory for {}", bytes, label);
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

class HostEvent final : public Event {
 public:
  explicit HostEvent(bool timed) : timed_(timed) {}
  void Record() {
    if (timed_) at_ = Clock::now();
  }
  double MillisecondsUntil(const HostEvent& later) const {
    MR_CHECK(timed_ && later.timed_, "time is kept by timed events");
    return std::chrono::duration<double, std::milli>(later.at_ - at_).count();
  }

 private:
  bool timed_;
  Clock::time_point at_;
};

template <class E>
auto& AsHost(E& event) {
  auto* host =
      dynamic_cast<std::conditional_t<std::is_const_v<E>, const HostEvent*, HostEvent*>>(&event);
  MR_CHECK(host != nullptr, "an event of another device");
  return *host;
}

class HostStream final : public Stream {
 public:
  void Record(Event& event) override { AsHost(event).Record(); }
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
  int64_t PageBytes() const override { return HostPageBytes(); }
  std::unique_ptr<PagedBuffer> AllocatePaged(int64_t bytes, const std::string& label,
                                             std::span<const int64_t> cuts) override {
    return AllocateHostPages(bytes, label, cuts);
  }
  std::unique_ptr<HostBuffer> AllocateHost(int64_t bytes, const std::string& label) override {
    return std::make_unique<AlignedBuffer<HostBuffer>>(bytes, label);
  }
  std::unique_ptr<Stream> MakeStream(StreamRole) override { return std::make_unique<HostStream>(); }
  std::unique_ptr<Event> MakeEvent() override { return std::make_unique<HostEvent>(false); }
  std::unique_ptr<Event> MakeTimedEvent() override { return std::make_unique<HostEvent>(true); }
  double MillisecondsBetween(const Event& begin, const Event& end) override {
    return AsHost(begin).MillisecondsUntil(AsHost(end));
  }
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
  void EnqueueFromHost(std::byte* device, const std::byte* pinned, int64_t bytes,
                       Stream&) override {
    std::memcpy(device, pinned, static_cast<size_t>(bytes));
  }
  void EnqueueFill(std::byte* device, std::byte value, int64_t bytes, Stream&) override {
    std::memset(device, static_cast<int>(value), static_cast<size_t>(bytes));
  }
  void EnqueueMarks(std::span<const Mark> marks, Stream&) override {
    for (const Mark& mark : marks)
      __atomic_store_n(reinterpret_cast<uint64_t*>(mark.word), mark.value, __ATOMIC_RELEASE);
  }
  void EnqueueCopies(std::span<const Copy> copies, std::span<const Mark> marks,
                     Stream& stream) override {
    for (const Copy& copy : copies) {
      MR_CHECK(copy.bytes % 4 == 0, "a copy of {} bytes; multiples of 4 are allowed", copy.bytes);
      std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
    }
    EnqueueMarks(marks, stream);
  }
  bool captures() const override { return false; }
  void BeginCapture(Stream&) override { MR_FAIL("host streams cannot be captured"); }
  std::unique_ptr<Graph> EndCapture(Stream&) override {
    MR_FAIL("host streams cannot be captured");
  }
  void RecordAtLaunch(Event&, Stream&) override { MR_FAIL("host streams cannot be captured"); }
};

}  // namespace

std::unique_ptr<Device> MakeHostDevice() { return std::make_unique<HostDevice>(); }

}  // namespace millrace
