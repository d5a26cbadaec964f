// The engine's plans of inference: one era, whose prologue is run when it is asked for.
#include "runtime/base/error.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/executor.h"

namespace millrace {

void Engine::WriteState(std::string_view state, std::span<const std::byte> bytes) {
  RequireArena();
  const BufferId id = plans_.states.Of(state);
  const TensorView view = StateView(id);
  MR_CHECK_EQ(static_cast<int64_t>(bytes.size()), view.bytes(), "bytes of the state {}", state);
  host_copies_.Write(id.value, view, bytes);
  validity_.HostWrites(id);
}

void Engine::BeginEra(std::string_view plan) {
  RequireArena();
  MR_CHECK_EQ(steps_in_flight(), 0, "an era begins while steps are in flight");
  const size_t index = IndexOf(plan);
  if (!validity_.NeedsPrologue(index)) return;
  RunPrologue(index, 0);
  executor_->Sync();
}

void Engine::RunInEra(std::string_view plan, std::span<const OutputRead> reads) {
  RequireArena();
  const size_t index = IndexOf(plan);
  MR_CHECK(!validity_.NeedsPrologue(index),
           "the {} plan is run, but its era has not begun, or weights have changed since it did",
           plan);
  RequireFound(index, false);
  RunSchedule(index, 0);
  std::vector<HostCopies::Read> copies;
  for (const OutputRead& read : reads) {
    const TensorView values = OutputView(plan, read.output);
    MR_CHECK_LE(read.bytes, values.bytes(), "bytes of {}", read.output);
    copies.push_back({values.data, read.to, read.bytes});
  }
  host_copies_.Wait(copies);  // a schedule ends on the compute stream
}

}  // namespace millrace
