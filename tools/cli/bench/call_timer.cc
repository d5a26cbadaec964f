#include "tools/cli/bench/call_timer.h"

#include <memory>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {
namespace {

CallTimer* active = nullptr;
const KernelTable* inner = nullptr;

template <auto kEntry, class Op>
auto Timed(void (*entry)(const Op&, Stream&)) {
  const auto call = [](const Op& op, Stream& stream) {
    const CallTimer::Scope scope(*active);
    (inner->*kEntry)(op, stream);
  };
  return entry == nullptr ? nullptr : static_cast<decltype(entry)>(call);
}

// The table with each of its entries behind a timed call.
KernelTable TimedTable(const KernelTable& kernels) {
#define MILLRACE_TIMED(Name, entry) Timed<&KernelTable::entry>(kernels.entry),
  return {MILLRACE_KERNEL_OPS(MILLRACE_TIMED)};
#undef MILLRACE_TIMED
}

class TimedCommunicator final : public Communicator {
 public:
  TimedCommunicator(std::unique_ptr<Communicator> inner, CallTimer& timer)
      : inner_(std::move(inner)), timer_(timer) {}

  int rank() const noexcept override { return inner_->rank(); }
  int world_size() const noexcept override { return inner_->world_size(); }
  bool RoundsInGathers() const noexcept override { return inner_->RoundsInGathers(); }
  void AllGather(const TensorView& shard, const TensorView& full, const TensorView& scratch,
                 Stream& stream) override {
    const CallTimer::Scope scope(timer_);
    inner_->AllGather(shard, full, scratch, stream);
  }
  void ReduceScatterSum(const TensorView& full, const TensorView& shard, const TensorView& scratch,
                        Stream& stream) override {
    const CallTimer::Scope scope(timer_);
    inner_->ReduceScatterSum(full, shard, scratch, stream);
  }
  void AllReduceSum(const TensorView& buffer, const TensorView& scratch, Stream& stream) override {
    const CallTimer::Scope scope(timer_);
    inner_->AllReduceSum(buffer, scratch, stream);
  }
  void AllToAll(const TensorView& sent, const TensorView& received, const LiveRows& live,
                Stream& stream) override {
    const CallTimer::Scope scope(timer_);
    inner_->AllToAll(sent, received, live, stream);
  }
  std::vector<std::string> HostAllGather(const std::string& payload) override {
    return inner_->HostAllGather(payload);
  }
  std::string HostBroadcast(const std::string& payload, int root) override {
    return inner_->HostBroadcast(payload, root);
  }
  void HostAllToAll(std::span<const SendPiece> sent, std::span<const RecvPiece> received) override {
    inner_->HostAllToAll(sent, received);
  }
  void Barrier() override { inner_->Barrier(); }
  const CommCounters& counters() const noexcept override { return inner_->counters(); }
  void RegisterMemory(std::byte* base, int64_t bytes) override {
    inner_->RegisterMemory(base, bytes);
  }
  void UnregisterMemory(std::byte* base) noexcept override { inner_->UnregisterMemory(base); }
  void Connect(const CommUses& uses) override { inner_->Connect(uses); }
  void CheckHealth() const override { inner_->CheckHealth(); }
  void Abort(const std::string& reason) noexcept override { inner_->Abort(reason); }

 private:
  std::unique_ptr<Communicator> inner_;
  CallTimer& timer_;
};

}  // namespace

CallTimer::CallTimer(const KernelTable& kernels, CommFactory& factory)
    : factory_(factory), timed_(TimedTable(kernels)) {
  MR_CHECK(active == nullptr, "two call timers at once");
  active = this;
  inner = &kernels;
}

CallTimer::~CallTimer() { active = nullptr; }

std::unique_ptr<Communicator> CallTimer::Make(const std::vector<int>& ranks,
                                              const std::string& label) {
  return std::make_unique<TimedCommunicator>(factory_.Make(ranks, label), *this);
}

std::unique_ptr<Communicator> CallTimer::MakeSmall(const std::vector<int>& ranks,
                                                   const std::string& label) {
  return std::make_unique<TimedCommunicator>(factory_.MakeSmall(ranks, label), *this);
}

}  // namespace millrace
