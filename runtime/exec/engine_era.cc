// The engine's plans of inference: one era, whose prologue is run when it is asked for.
#include <cstring>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"
#include "runtime/exec/engine.h"

namespace millrace {

void Engine::WriteState(std::string_view state, std::span<const std::byte> bytes) {
  RequireArena();
  const BufferId id = plans_.states.Of(state);
  const TensorView view = StateView(id);
  MR_CHECK_EQ(static_cast<int64_t>(bytes.size()), view.bytes(), "bytes of the state {}", state);
  Stream& compute = executor_.stream(StreamId::kCompute);
  HostState& host = host_states_[id.value];
  if (!host.staged)
    host.staged = context_.device->AllocateHost(view.bytes(), "what the host writes of a state");
  if (host.copying) compute.Sync();
  std::memcpy(host.staged->data(), bytes.data(), bytes.size());
  context_.device->EnqueueFromHost(view.data, host.staged->data(), view.bytes(), compute);
  host.copying = true;
  validity_.HostWrites(id);
}

void Engine::BeginEra(std::string_view plan) {
  RequireArena();
  MR_CHECK_EQ(steps_in_flight(), 0, "an era begins while steps are in flight");
  const size_t index = IndexOf(plan);
  if (!validity_.NeedsPrologue(index)) return;
  RunPrologue(index, 0);
  executor_.Sync();
}

void Engine::RunInEra(std::string_view plan, std::span<const OutputRead> reads) {
  RequireArena();
  const size_t index = IndexOf(plan);
  MR_CHECK(!validity_.NeedsPrologue(index),
           "the {} plan is run, but its era has not begun, or weights have changed since it did",
           plan);
  RequireFound(index, false);
  RunSchedule(index, 0);
  constexpr int64_t kAlignment = 256;
  int64_t bytes = 0;
  for (const OutputRead& read : reads) bytes += RoundUp(read.bytes, kAlignment);
  if (bytes > 0 && (!read_back_ || read_back_->bytes() < bytes))
    read_back_ = context_.device->AllocateHost(bytes, "outputs that are read back");
  Stream& compute = executor_.stream(StreamId::kCompute);  // a schedule ends on it
  int64_t at = 0;
  for (const OutputRead& read : reads) {
    const TensorView values = OutputView(plan, read.output);
    MR_CHECK_LE(read.bytes, values.bytes(), "bytes of {}", read.output);
    context_.device->EnqueueToHost(read_back_->data() + at, values.data, read.bytes, compute);
    at += RoundUp(read.bytes, kAlignment);
  }
  compute.Sync();
  for (auto& [id, host] : host_states_) host.copying = false;
  at = 0;
  for (const OutputRead& read : reads) {
    std::memcpy(read.to, read_back_->data() + at, static_cast<size_t>(read.bytes));
    at += RoundUp(read.bytes, kAlignment);
  }
}

}  // namespace millrace
