#include "tests/support/capturing_device.h"

#include <fstream>

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

class CapturingDevice final : public Device {
 public:
  std::string name() const override { return "capturing host"; }
  int64_t UsedBytes() const override { return 0; }
  std::unique_ptr<DeviceBuffer> Allocate(int64_t bytes, const std::string& label) override {
    return host_->Allocate(bytes, label);
  }
  std::unique_ptr<HostBuffer> AllocateHost(int64_t bytes, const std::string& label) override {
    return host_->AllocateHost(bytes, label);
  }
  std::unique_ptr<Stream> MakeStream(const std::string& role) override {
    return host_->MakeStream(role);
  }
  std::unique_ptr<Event> MakeEvent() override { return host_->MakeEvent(); }
  std::unique_ptr<Event> MakeTimedEvent() override { return host_->MakeTimedEvent(); }
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
    host_->EnqueueToHost(pinned, device, bytes, stream);
  }
  void EnqueueFromHost(std::byte* device, const std::byte* pinned, int64_t bytes,
                       Stream& stream) override {
    host_->EnqueueFromHost(device, pinned, bytes, stream);
  }
  void EnqueueFill(std::byte* device, std::byte value, int64_t bytes, Stream& stream) override {
    host_->EnqueueFill(device, value, bytes, stream);
  }
  void EnqueueMarks(std::span<const Mark> marks, Stream& stream) override {
    host_->EnqueueMarks(marks, stream);
  }
  bool captures() const override { return true; }
  void BeginCapture(Stream&) override {
    MR_CHECK(!capturing_, "a capture within a capture");
    capturing_ = true;
  }
  std::unique_ptr<Graph> EndCapture(Stream&) override {
    MR_CHECK(capturing_, "the end of a capture that was not begun");
    capturing_ = false;
    return std::make_unique<SpentGraph>();
  }
  void RecordAtLaunch(Event& event, Stream& stream) override {
    MR_CHECK(capturing_, "an event for a graph's launch outside a capture");
    stream.Record(event);
  }

 private:
  const std::unique_ptr<Device> host_ = MakeHostDevice();
  bool capturing_ = false;
};

}  // namespace

std::unique_ptr<Device> MakeCapturingDevice() { return std::make_unique<CapturingDevice>(); }

}  // namespace millrace::test
