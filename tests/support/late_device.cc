#include "tests/support/late_device.h"

#include <array>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "runtime/base/cpu/host_device.h"
#include "runtime/base/error.h"

namespace millrace::test {
namespace {

constexpr int kPoison = 0x6b;

using Graveyard = std::vector<std::unique_ptr<HostBuffer>>;

// Memory that outlives its owner, who finds no fault with it: whoever reads it then does.
class BuriedBuffer final : public HostBuffer {
 public:
  BuriedBuffer(std::unique_ptr<HostBuffer> host, Graveyard& graveyard)
      : host_(std::move(host)), graveyard_(graveyard) {
    std::memset(data(), kPoison, static_cast<size_t>(bytes()));
  }
  ~BuriedBuffer() override {
    std::memset(data(), kPoison, static_cast<size_t>(bytes()));
    graveyard_.push_back(std::move(host_));
  }
  std::byte* data() const noexcept override { return host_->data(); }
  int64_t bytes() const noexcept override { return host_->bytes(); }

 private:
  std::unique_ptr<HostBuffer> host_;
  Graveyard& graveyard_;
};

class LateStream;

struct LateEvent final : Event {
  LateStream* stream = nullptr;  // null: never recorded
  int64_t behind = 0;            // pieces of work of the stream
};

class LateStream final : public Stream {
 public:
  void Add(std::function<void()> work) { work_.push_back(std::move(work)); }
  void RunTo(int64_t end) {
    for (; done_ < end; ++done_) {
      work_.front()();
      work_.pop_front();
    }
  }
  int64_t enqueued() const { return done_ + std::ssize(work_); }
  void Record(Event& event) override {
    auto& late = static_cast<LateEvent&>(event);
    late.stream = this;
    late.behind = enqueued();
  }
  void Wait(const Event& event) override {
    const auto& late = static_cast<const LateEvent&>(event);
    if (late.stream != nullptr && late.stream != this)
      Add([late] { late.stream->RunTo(late.behind); });
  }
  void Sync() override { RunTo(enqueued()); }

 private:
  std::deque<std::function<void()>> work_;
  int64_t done_ = 0;
};

class LateHostDevice final : public LateDevice {
 public:
  void Enqueue(std::function<void()> work, Stream& stream) override {
    static_cast<LateStream&>(stream).Add(std::move(work));
  }
  std::string name() const override { return "late host"; }
  int64_t UsedBytes() const override { return 0; }
  std::unique_ptr<DeviceBuffer> Allocate(int64_t bytes, const std::string& label) override {
    return host_->Allocate(bytes, label);
  }
  int64_t PageBytes() const override { return host_->PageBytes(); }
  std::unique_ptr<PagedBuffer> AllocatePaged(int64_t, const std::string&,
                                             std::span<const int64_t>) override {
    MR_FAIL("a late device has no paged memory");
  }
  std::unique_ptr<HostBuffer> AllocateHost(int64_t bytes, const std::string& label) override {
    return std::make_unique<BuriedBuffer>(host_->AllocateHost(bytes, label), graveyard_);
  }
  std::unique_ptr<Stream> MakeStream(StreamRole) override { return std::make_unique<LateStream>(); }
  std::unique_ptr<Event> MakeEvent() override { return std::make_unique<LateEvent>(); }
  std::unique_ptr<Event> MakeTimedEvent() override { MR_FAIL("a late device has no timed events"); }
  double MillisecondsBetween(const Event&, const Event&) override {
    MR_FAIL("a late device has no timed events");
  }
  void SyncEvent(const Event& event) override {
    const auto& late = static_cast<const LateEvent&>(event);
    if (late.stream != nullptr) late.stream->RunTo(late.behind);
  }
  void CopyToHost(void* host, const std::byte* device, int64_t bytes, Stream& stream) override {
    stream.Sync();
    std::memcpy(host, device, static_cast<size_t>(bytes));
  }
  void CopyFromHost(std::byte* device, const void* host, int64_t bytes, Stream& stream) override {
    stream.Sync();
    std::memcpy(device, host, static_cast<size_t>(bytes));
  }
  void EnqueueToHost(std::byte* pinned, const std::byte* device, int64_t bytes,
                     Stream& stream) override {
    EnqueueCopies(std::array{Copy{pinned, device, bytes}}, {}, stream);
  }
  void EnqueueFromHost(std::byte* device, const std::byte* pinned, int64_t bytes,
                       Stream& stream) override {
    EnqueueCopies(std::array{Copy{device, pinned, bytes}}, {}, stream);
  }
  void EnqueueFill(std::byte* device, std::byte value, int64_t bytes, Stream& stream) override {
    Enqueue([=] { std::memset(device, static_cast<int>(value), static_cast<size_t>(bytes)); },
            stream);
  }
  void EnqueueMarks(std::span<const Mark> marks, Stream& stream) override {
    EnqueueCopies({}, marks, stream);
  }
  void EnqueueCopies(std::span<const Copy> copies, std::span<const Mark> marks,
                     Stream& stream) override {
    const std::vector<Copy> all(copies.begin(), copies.end());
    const std::vector<Mark> words(marks.begin(), marks.end());
    Enqueue(
        [all, words] {
          for (const Copy& copy : all)
            std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
          for (const Mark& mark : words) std::memcpy(mark.word, &mark.value, sizeof mark.value);
        },
        stream);
  }
  bool captures() const override { return false; }
  void BeginCapture(Stream&) override { MR_FAIL("a late device captures nothing"); }
  std::unique_ptr<Graph> EndCapture(Stream&) override { MR_FAIL("a late device captures nothing"); }
  void RecordAtLaunch(Event&, Stream&) override { MR_FAIL("a late device captures nothing"); }

 private:
  const std::unique_ptr<Device> host_ = MakeHostDevice();
  Graveyard graveyard_;
};

}  // namespace

std::unique_ptr<LateDevice> MakeLateDevice() { return std::make_unique<LateHostDevice>(); }

}  // namespace millrace::test
