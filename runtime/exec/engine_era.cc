// The engine's plans of inference: one era, whose prologue is run when it is asked for.
#include <utility>

#include "runtime/base/error.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/executor.h"

namespace millrace {

void Engine::BeginEra(std::string_view plan) {
  RequireArena();
  MR_CHECK_EQ(steps_in_flight(), 0, "an era begins while steps are in flight");
  const size_t index = IndexOf(plan);
  if (!validity_.NeedsPrologue(index)) return;
  RunPrologue(index, 0);
  executor_->Sync();
}

int64_t Engine::LaunchInEra(const EraRun& run) {
  RequireArena();
  const size_t index = IndexOf(run.plan);
  MR_CHECK(!validity_.NeedsPrologue(index),
           "the {} plan is run, but its era has not begun, or weights have changed since it did",
           run.plan);
  const auto place = [&](std::string_view state, int64_t offset, int64_t bytes) {
    const BufferId id = plans_.states.Of(state);
    const TensorView view = StateView(id);
    MR_CHECK(offset >= 0 && offset + bytes <= view.bytes(), "bytes {} to {} of the state {} of {}",
             offset, offset + bytes, state, view.bytes());
    validity_.HostWrites(id);
    return view.data + offset;
  };
  std::vector<HostCopies::Write> writes;
  for (const StateWrite& write : run.writes)
    writes.push_back({place(write.state, write.offset, std::ssize(write.bytes)), write.bytes});
  std::vector<HostCopies::Feed> feeds;
  for (const StateFeed& feed : run.feeds)
    feeds.push_back(
        {feed.run, feed.read, feed.from, place(feed.state, feed.offset, feed.bytes), feed.bytes});
  std::vector<HostCopies::Read> reads;
  for (const OutputRead& read : run.reads) {
    const TensorView values = OutputView(run.plan, read.output);
    MR_CHECK_LE(read.bytes, values.bytes(), "bytes of {}", read.output);
    reads.push_back({values.data, read.bytes});
  }
  RequireFound(index, false);
  const int64_t number = host_copies_.Begin(writes, feeds, [&](std::span<const Device::Copy> all) {
    executor_->BeginRun({static_cast<int32_t>(index), false, 0}, all);
  });
  IssueSchedule(index);  // which ends on the compute stream
  executor_->EndRun();
  validity_.Ran(index, false);
  host_copies_.End(number, std::move(reads));
  return number;
}

const std::vector<std::span<const std::byte>>& Engine::CollectInEra(int64_t run) {
  return host_copies_.Collect(run);
}

void Engine::DropInEra() noexcept {
  try {
    executor_->Sync();
  } catch (const Error&) {
    // Whoever calls the device next meets it.
  }
  host_copies_.Forget();
}

}  // namespace millrace
