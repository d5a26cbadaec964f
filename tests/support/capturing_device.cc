#include "tests/support/capturing_device.h"

#include <fstream>
#include <utility>

#include "runtime/base/cpu/host_device.h"
#include "runtime/base/error.h"

namespace millrace::test {
namespace {

class SpentGraph final : public Graph {
 public:
  void Launch(Stream&) override {}
  int64_t nodes() const noexcept override { return 1; }
  void WriteDot(const std::string& path) const override {
    std::ofstream(path) << "digraph spent {}\n";
  }
};

class MovingBuffer final : public DeviceBuffer {
 public:
  MovingBuffer(std::unique_ptr<DeviceBuffer> twice, const bool& moved)
      : twice_(std::move(twice)), moved_(moved) {}
  std::byte* data() const noexcept override {
    return twice_->data() + (moved_ ? twice_->bytes() / 2 : 0);
  }
  int64_t bytes() const noexcept override { return twice_->bytes() / 2; }

 private:
  const std::unique_ptr<DeviceBuffer> twice_;
  const bool& moved_;
};

// Says when memory is mapped again.
class ToldPages final : public PagedBuffer {
 public:
  ToldPages(std::unique_ptr<PagedBuffer> host, std::function<void()> at_map)
      : host_(std::move(host)), at_map_(std::move(at_map)) {}
  std::byte* data() const noexcept override { return host_->data(); }
  int64_t bytes() const noexcept override { return host_->bytes(); }
  void Unmap(int64_t begin, int64_t end) override { host_->Unmap(begin, end); }
  void Map(int64_t begin, int64_t end) override {
    at_map_();
    host_->Map(begin, end);
  }

 private:
  const std::unique_ptr<PagedBuffer> host_;
  const std::function<void()> at_map_;
};

class HookedStream final : public Stream {
 public:
  HookedStream(std::unique_ptr<Stream> host, std::function<void()> at_sync)
      : host_(std::move(host)), at_sync_(std::move(at_sync)) {}
  void Record(Event& event) override { host_->Record(event); }
  void Wait(const Event& event) override { host_->Wait(event); }
  void Sync() override {
    at_sync_();
    host_->Sync();
  }

 private:
  const std::unique_ptr<Stream> host_;
  const std::function<void()> at_sync_;
};

class CapturingDevice final : public Device {
 public:
  explicit CapturingDevice(const DeviceHooks& hooks) : hooks_(hooks) {}
  std::string name() const override { return "capturing host"; }
  int64_t UsedBytes() const override { return 0; }
  std::unique_ptr<DeviceBuffer> Allocate(int64_t bytes, const std::string& label) override {
    Told(label);
    if (hooks_.arena_moved == nullptr) return host_->Allocate(bytes, label);
    return std::make_unique<MovingBuffer>(host_->Allocate(2 * bytes, label), *hooks_.arena_moved);
  }
  int64_t PageBytes() const override { return host_->PageBytes(); }
  std::unique_ptr<PagedBuffer> AllocatePaged(int64_t bytes, const std::string& label,
                                             std::span<const int64_t> cuts) override {
    Told(label);
    return std::make_unique<ToldPages>(host_->AllocatePaged(bytes, label, cuts),
                                       [this] { Told("mapped pages"); });
  }
  std::unique_ptr<HostBuffer> AllocateHost(int64_t bytes, const std::string& label) override {
    Told(label);
    return host_->AllocateHost(bytes, label);
  }
  std::unique_ptr<Stream> MakeStream(StreamRole role) override {
    if (hooks_.at_stream) hooks_.at_stream(role);
    if (!hooks_.at_sync) return host_->MakeStream(role);
    return std::make_unique<HookedStream>(host_->MakeStream(role), hooks_.at_sync);
  }
  std::unique_ptr<Event> MakeEvent() override { return host_->MakeEvent(); }
  std::unique_ptr<Event> MakeTimedEvent() override {
    Told("timed event");
    return host_->MakeTimedEvent();
  }
  double MillisecondsBetween(const Event& begin, const Event& end) override {
    return host_->MillisecondsBetween(begin, end);
  }
  void SyncEvent(const Event& event) override { host_->SyncEvent(event); }
  void CopyToHost(void* host, const std::byte* device, int64_t bytes, Stream& stream) override {
    host_->CopyToHost(host, device, bytes, stream);
  }
  void CopyFromHost(std::byte* device, const void* host, int64_t bytes, Stream& stream) override {
    host_->CopyFromHost(device, host, bytes, stream);
  }
  void EnqueueToHost(std::byte* pinned, const std::byte* device, int64_t bytes,
                     Stream& stream) override {
    if (hooks_.at_transfer) hooks_.at_transfer(bytes);
    host_->EnqueueToHost(pinned, device, bytes, stream);
  }
  void EnqueueFromHost(std::byte* device, const std::byte* pinned, int64_t bytes,
                       Stream& stream) override {
    if (hooks_.at_transfer) hooks_.at_transfer(bytes);
    host_->EnqueueFromHost(device, pinned, bytes, stream);
  }
  void EnqueueCopies(std::span<const Copy> copies, std::span<const Mark> marks,
                     Stream& stream) override {
    if (hooks_.at_copies) hooks_.at_copies(copies, marks);
    host_->EnqueueCopies(copies, marks, stream);
  }
  void EnqueueFill(std::byte* device, std::byte value, int64_t bytes, Stream& stream) override {
    host_->EnqueueFill(device, value, bytes, stream);
  }
  void EnqueueMarks(std::span<const Mark> marks, Stream& stream) override {
    if (hooks_.at_copies) hooks_.at_copies({}, marks);
    host_->EnqueueMarks(marks, stream);
  }
  bool captures() const override { return true; }
  void BeginCapture(Stream&) override {
    MR_CHECK(!capturing_, "a capture within a capture");
    if (hooks_.at_begin_capture) hooks_.at_begin_capture();
    capturing_ = true;
  }
  std::unique_ptr<Graph> EndCapture(Stream&) override {
    MR_CHECK(capturing_, "the end of a capture that was not begun");
    capturing_ = false;
    if (hooks_.at_end_capture) hooks_.at_end_capture();
    return std::make_unique<SpentGraph>();
  }
  void RecordAtLaunch(Event& event, Stream& stream) override {
    MR_CHECK(capturing_, "an event for a graph's launch outside a capture");
    stream.Record(event);
  }

 private:
  void Told(const std::string& label) const {
    if (hooks_.at_allocation) hooks_.at_allocation(label);
  }

  const DeviceHooks hooks_;
  const std::unique_ptr<Device> host_ = MakeHostDevice();
  bool capturing_ = false;
};

}  // namespace

std::unique_ptr<Device> MakeCapturingDevice(const DeviceHooks& hooks) {
  return std::make_unique<CapturingDevice>(hooks);
}

}  // namespace millrace::test
