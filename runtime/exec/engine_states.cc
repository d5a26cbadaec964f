// What the host reads and writes of an engine between its plans: states, and what plans have made.
#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/exec/bound_op.h"
#include "runtime/exec/engine.h"
#include "runtime/plan/layout/param_init.h"

namespace millrace {

TensorView Engine::StateView(BufferId state) const {
  const StateTensor& tensor = plans_.states.tensor(state);
  MR_REQUIRE(
      ErrorCode::kInvalidArgument,
      !released_ || !Touches(released_->pages, tensor.offset, tensor.offset + tensor.bytes()),
      "the memory of {} is released ({}): Acquire() brings it back", tensor.name,
      Name(released_->part));
  return {arena_->data() + tensor.offset, tensor.layout};
}

TensorView Engine::Half(BufferId input, int64_t parity) const {
  TensorView view = StateView(input);
  view.layout = DenseLayout(view.dtype(), {view.layout.numel() / 2});
  view.data += parity * view.bytes();
  return view;
}

BufferId Engine::SlotOf(std::string_view slot, FlatId flat) const {
  const BufferId id = plans_.states.Slot(slot, flat);
  MR_CHECK(id, "the run has no state {} of {}", slot, layout_.flat(flat).name);
  return id;
}

TensorView Engine::ShardView(std::string_view slot, FlatId flat) const {
  return StateView(SlotOf(slot, flat));
}

void Engine::InitWeights(uint64_t seed) {
  constexpr int64_t kFloat = sizeof(float);
  static_assert(kMasterSlot.dtype == DType::kF32);
  int64_t numel = 1;
  for (const FlatParam& flat : layout_.flats) numel = std::max(numel, flat.shard_numel);
  numel = std::min(numel, int64_t{1} << 22);  // enough for all threads of FillShard
  const int rank = context_.comms->world().rank();
  Stream& compute = stream(StreamId::kCompute);
  const std::unique_ptr<HostBuffer> buffer =
      context_.device->AllocateHost(numel * kFloat, "room for initial weights");
  const std::span<float> room(reinterpret_cast<float*>(buffer->data()), static_cast<size_t>(numel));
  for (const auto& [slot, flat] : SavedSlots(layout_)) {
    const TensorView view = ShardView(slot.name, flat);
    if (slot == kMasterSlot) {
      FillShard(layout_, flat, rank, seed, room, [&](int64_t first, std::span<const float> values) {
        context_.device->CopyFromHost(view.data + first * kFloat, values.data(),
                                      std::ssize(values) * kFloat, compute);
      });
      validity_.HostWrites(SlotOf(slot.name, flat));
    } else {
      context_.device->EnqueueFill(view.data, std::byte{0}, view.bytes(), compute);
    }
  }
  WriteScalars(StepScalars{});
}

std::vector<float> Engine::ReadShard(std::string_view slot, FlatId flat) {
  std::vector<float> values(static_cast<size_t>(layout_.flat(flat).shard_numel));
  ReadShard(slot, flat, values);
  return values;
}

void Engine::ReadShard(std::string_view slot, FlatId flat, std::span<float> values) {
  const TensorView view = ShardView(slot, flat);
  MR_CHECK_EQ(static_cast<int64_t>(values.size()), view.numel(), "elements of {}",
              plans_.states.tensor(SlotOf(slot, flat)).name);
  Stream& compute = stream(StreamId::kCompute);
  if (view.dtype() == DType::kF32)
    return context_.device->CopyToHost(values.data(), view.data, view.bytes(), compute);
  std::vector<BFloat16> narrow(values.size());
  context_.device->CopyToHost(narrow.data(), view.data, view.bytes(), compute);
  ConvertToFloat(narrow.data(), values.data(), view.numel());
}

void Engine::WriteShard(std::string_view slot, FlatId flat, std::span<const float> values) {
  const TensorView view = ShardView(slot, flat);
  MR_CHECK_EQ(static_cast<int64_t>(values.size()), view.numel(), "elements of {}",
              plans_.states.tensor(SlotOf(slot, flat)).name);
  std::vector<BFloat16> narrow;
  const void* from = values.data();
  if (view.dtype() == DType::kBF16) {
    narrow.resize(values.size());
    ConvertToBFloat16(values.data(), narrow.data(), view.numel());
    from = narrow.data();
  }
  context_.device->CopyFromHost(view.data, from, view.bytes(), stream(StreamId::kCompute));
  validity_.HostWrites(SlotOf(slot, flat));
}

StepScalars Engine::ReadScalars() {
  StepScalars scalars;
  context_.device->CopyToHost(&scalars, StateView(scalars_).data, sizeof scalars,
                              stream(StreamId::kCompute));
  return scalars;
}

void Engine::WriteScalars(const StepScalars& scalars) {
  context_.device->CopyFromHost(StateView(scalars_).data, &scalars, sizeof scalars,
                                stream(StreamId::kCompute));
  validity_.HostWrites(scalars_);
}

TensorView Engine::OutputView(std::string_view plan_name, std::string_view output) const {
  const StepPlan& plan = plans_.Of(plan_name);
  const View* const view = plan.FindOutput(output);
  MR_CHECK(view != nullptr, "the {} plan has no output {}", plan_name, output);
  const Body& last = plan.body(plan.schedule.back());
  return BindView(BindingOf(plan), *view, last.end() - 1, 0);
}

void Engine::ReadOutput(std::string_view plan, std::string_view output, void* to, int64_t bytes) {
  RequireArena();
  const TensorView values = OutputView(plan, output);
  MR_CHECK_LE(bytes, values.bytes(), "bytes of {}", output);
  context_.device->CopyToHost(to, values.data, bytes, stream(StreamId::kCompute));
}

std::map<std::string, double> Engine::LossSums() {
  MR_CHECK_EQ(steps_in_flight(), 0, "losses are read while steps are in flight");
  const std::vector<LossSpec>& losses = plans_.plans.front().losses;  // of all plans
  const auto count = static_cast<int64_t>(losses.size());
  const StatsRow row(static_cast<int64_t>(layout_.flats.size()), count);
  const TensorView stats = StateView(plans_.states.Of("stats"));
  const int64_t first = context_.comms->world().rank() * row.width + row.losses;
  constexpr auto kBytes = static_cast<int64_t>(sizeof(double));
  std::vector<double> cells(losses.size());
  context_.device->CopyToHost(cells.data(), stats.data + first * kBytes, count * kBytes,
                              stream(StreamId::kCompute));
  std::map<std::string, double> sums;
  for (size_t l = 0; l < cells.size(); ++l) sums[losses[l].name] = cells[l];
  return sums;
}

double Engine::EvalLossSum(const HostInputs& inputs) {
  Run("eval", inputs);
  const std::map<std::string, double> sums = LossSums();
  double sum = 0;
  for (const LossSpec& loss : plans_.Of("eval").losses)
    if (loss.held_out) sum += loss.weight * sums.at(loss.name);
  return sum;
}

std::vector<float> Engine::Logits(std::span<const int32_t> tokens, int64_t row, int64_t vocab) {
  Run("generate", tokens, row);
  std::vector<float> values(static_cast<size_t>(vocab));
  ReadOutput("generate", "logits", values.data(), vocab * static_cast<int64_t>(sizeof(float)));
  return values;
}

}  // namespace millrace
