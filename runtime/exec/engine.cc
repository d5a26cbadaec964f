#include "runtime/exec/engine.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"
#include "runtime/exec/agreement/plan_agreement.h"
#include "runtime/exec/checked/adversary.h"
#include "runtime/exec/checked/checked_memory.h"
#include "runtime/exec/input_rows.h"
#include "runtime/exec/recorded_step.h"

namespace millrace {
namespace {

// Evaluation and generation have no faults of their own, whatever the last step was given.
void ClearFaults(StepScalars& scalars) {
  const StepScalars none{};
  scalars.inject_loss_nan = none.inject_loss_nan;
  scalars.inject_grad_unit = none.inject_grad_unit;
}

// The part of the scalars that the host writes for each step; ops write the rest.
constexpr int64_t kHostScalarBytes = offsetof(StepScalars, lr);

// What is larger is copied by a copy engine: it takes microseconds to begin, and moves more at once
// than the few blocks of a launch that copies.
constexpr int64_t kMostBytesOfLaunch = int64_t{64} << 10;
// Of ends of copies in pinned memory: then a launch copies 16 bytes at a time.
constexpr int64_t kPinnedAlignment = 16;

// The plan of a step; none: a run that does not train.
std::optional<size_t> TrainPlan(const RunPlans& run) {
  for (size_t p = 0; p < run.plans.size(); ++p)
    if (run.plans[p].updates()) return p;
  return std::nullopt;
}

std::vector<BufferId> InputsOf(const StateLayout& states) {
  std::vector<BufferId> inputs;
  for (const BufferId id : states.ids())
    if (states.tensor(id).by_parity) inputs.push_back(id);
  return inputs;
}

}  // namespace

Engine::Engine(const ExecutorContext& context, ShardLayout layout, RunPlans plans,
               const EngineOptions& options)
    : context_(context),
      layout_(std::move(layout)),
      plans_(std::move(plans)),
      inputs_(InputsOf(plans_.states)),
      scalars_(plans_.states.Of("scalars")),
      train_(TrainPlan(plans_)),
      validity_(plans_.states, plans_.All()),
      options_(options),
      executor_(std::make_unique<Executor>(context)),
      host_copies_(*context.device, stream(StreamId::kCompute)),
      recorded_(plans_.plans.size()) {
  CheckSeams(plans_, layout_);
  int64_t bytes = 0;
  for (const StepPlan& plan : plans_.plans) bytes = std::max(bytes, plan.arena_bytes);
  RequireSamePlans(*context_.comms, layout_, plans_.All());
  AllocateArena(bytes);
  // What nobody writes is found by whoever reads it, states included.
  if (options_.checked) {
    context_.device->EnqueueFill(arena_->data(), kPoison, bytes, stream(StreamId::kCompute));
    executor_->Sync();
  }
  context_.comms->RegisterMemory(arena_->data(), bytes);
  context_.comms->Connect();
  for (const BufferId state : plans_.states.ids()) {
    if (!plans_.states.tensor(state).saved) continue;
    const TensorView view = StateView(state);
    context_.device->EnqueueFill(view.data, std::byte{0}, view.bytes(), stream(StreamId::kCompute));
    validity_.HostWrites(state);
  }
  WriteScalars(StepScalars{});
  if (train_) AllocateInFlight();
  if (options_.checked)
    observer_ = std::make_unique<CheckedMemory>(
        layout_.mesh, context_.comms->world().rank(),
        context_.device->captures()
            ? ArenaView(arena_->data(), *context_.device, stream(StreamId::kCompute))
            : ArenaView(arena_->data()));
  else if (options_.graph != GraphMode::kOff && !options_.adversary_seed)
    Record();
}

void Engine::AllocateArena(int64_t bytes) {
  Device& device = *context_.device;
  why_kept_ = options_.releasable ? context_.comms->WhyArenaStays()
                                  : "the engine was made without EngineOptions::releasable";
  if (!why_kept_.empty()) {
    arena_ = context_.comms->AllocateArena(device, bytes, "arena");
    return;
  }
  auto pages =
      device.AllocatePaged(bytes, "arena", CutsOf(plans_.states, bytes, device.PageBytes()));
  pages_ = pages.get();
  arena_ = std::move(pages);
}

void Engine::AllocateInFlight() {
  Device& device = *context_.device;
  int64_t bytes = 0;
  for (const BufferId input : inputs_)
    bytes += RoundUp(StateView(input).bytes() / 2, kPinnedAlignment);
  const BufferId tallies = plans_.states.Find(kTallies);
  for (InFlight& slot : in_flight_)
    slot = {device.AllocateHost(bytes, "inputs of a step in flight"),
            device.AllocateHost(kHostScalarBytes, "scalars of a step in flight"),
            device.AllocateHost(sizeof(StepScalars), "results of a step in flight"),
            tallies ? device.AllocateHost(StateView(tallies).bytes(), "tallies of a step in flight")
                    : nullptr,
            device.MakeTimedEvent(),
            device.MakeTimedEvent()};
}

void Engine::Record() {
  std::string offsets;
  for (size_t p = 0; p < recorded_.size(); ++p) {
    const StepPlan& plan = plans_.plans[p];
    recorded_[p] =
        std::make_unique<RecordedStep>(*executor_, BindingOf(plan), plan.schedule, options_.graph);
    offsets += fmt::format("{} {} ", plan.name, recorded_[p]->OffsetsHash());
  }
  const std::vector<std::string> all = context_.comms->world().HostAllGather(offsets);
  for (size_t r = 0; r < all.size(); ++r)
    MR_CHECK(all[r] == all[0],
             "rank {} has bound its operands at other offsets of its arena than rank 0: {}and {}",
             r, all[r], all[0]);
}

// What is in flight reads and writes memory that is about to go.
Engine::~Engine() {
  try {
    executor_->Sync();
  } catch (const Error&) {
    // The device has failed, and whoever met the failure first has said so.
  }
  // Graphs before what they name, and the transport's knowledge of the arena before the arena.
  recorded_.clear();
  observed_recorded_.reset();
  context_.comms->UnregisterMemory(arena_->data());
}

Stream& Engine::stream(StreamId id) { return executor_->stream(id); }
void Engine::LogOrder() { executor_->LogOrder(); }
const OrderLog* Engine::order() const { return executor_->order(); }

int64_t Engine::arena_bytes() const { return arena_->bytes(); }

size_t Engine::IndexOf(std::string_view plan) const {
  return static_cast<size_t>(&plans_.Of(plan) - plans_.plans.data());
}

Binding Engine::BindingOf(const StepPlan& plan) const {
  const int rank = context_.comms->world().rank();
  return {&plan, arena_->data(), layout_.mesh, rank};
}

std::vector<std::span<const std::byte>> Engine::BytesOfInputs(size_t plan,
                                                              const HostInputs& inputs) {
  const Mesh& mesh = layout_.mesh;
  const int64_t place = mesh.Index(context_.comms->world().rank(), Axis::kContext);
  const int64_t ranks = mesh.Size(Axis::kContext);
  const std::vector<BufferId>& read = plans_.plans[plan].seam.reads;
  std::vector<std::span<const std::byte>> bytes;
  chunks_.clear();
  filled_.clear();
  size_t given = 0;
  for (const BufferId input : inputs_) {
    const StateTensor& state = plans_.states.tensor(input);
    const std::string& name = state.name;
    const HostInputs::Input* const found = inputs.find(name);
    bytes.emplace_back();
    if (found == nullptr) {
      MR_CHECK(!std::binary_search(read.begin(), read.end(), input), "the input '{}' is not given",
               name);
      continue;
    }
    ++given;
    bytes.back() = found->bytes;
    if (state.window.filled > 0) {
      filled_.push_back(Filled(bytes.back(), state.window, state.layout.dtype));
      bytes.back() = filled_.back();
    }
    if (ranks > 1) {
      chunks_.push_back(
          ChunksOf(bytes.back(), state.window, Bytes(state.layout.dtype), ranks, place));
      bytes.back() = chunks_.back();
    }
    MR_CHECK_LE(static_cast<int64_t>(bytes.back().size()), Half(input, 0).bytes(),
                "bytes of the input {}", name);
  }
  MR_CHECK_EQ(inputs.size(), given, "inputs that are given and sources of the run");
  return bytes;
}

void Engine::RunAdversarial(const StepPlan& plan, const std::vector<Entry>& schedule) {
  const Binding binding = BindingOf(plan);
  std::unique_ptr<Adversary>& adversary = adversaries_[&plan];
  if (!adversary)
    adversary = std::make_unique<Adversary>(plan, layout_.mesh, binding.rank, binding.arena,
                                            *options_.adversary_seed);
  if (std::exchange(last_adversarial_, &plan) != &plan) adversary->Reset();
  std::vector<int64_t> first = {0};  // index of each entry's first op in the order of issue
  for (const Entry& entry : schedule)
    first.push_back(first.back() + static_cast<int64_t>(plan.body(entry).ops.size()));
  adversary->Run(schedule, [&](const Entry& entry, int entry_index, int op_index) {
    executor_->RunOne(binding, entry, op_index, first[static_cast<size_t>(entry_index)] + op_index);
  });
}

// What the plan's prologue, or its schedule, is to find is there.
void Engine::RequireFound(size_t plan, bool prologue) const {
  const BufferId missing = validity_.Missing(plan, prologue);
  MR_CHECK(!missing, "{}", validity_.Describe(plan, missing));
}

// The same, or is made.
void Engine::Prepare(size_t plan, int64_t step, Copies& ahead) {
  if (validity_.NeedsPrologue(plan)) RunPrologue(plan, step, std::exchange(ahead, {}));
  RequireFound(plan, false);
}

void Engine::RunPrologue(size_t index, int64_t step, const Copies& ahead) {
  RequireFound(index, true);
  host_copies_.Flush();
  const StepPlan& plan = plans_.plans[index];
  executor_->BeginRun({static_cast<int32_t>(index), true, step}, ahead);
  if (options_.adversary_seed)
    RunAdversarial(plan, plan.prologue);
  else
    executor_->Run(BindingOf(plan), plan.prologue, observer_.get());
  executor_->EndRun();
  validity_.Ran(index, true);
}

void Engine::Observe(OpObserver* observer) {
  MR_REQUIRE(
      ErrorCode::kConfig, observer == nullptr || observer_ == nullptr,
      "execution.checked = true: ops are watched by the check already, nobody else can watch them");
  watcher_ = observer;
}

void Engine::ObserveCapture(CaptureObserver* observer) {
  MR_CHECK(replays() || observer == nullptr,
           "a capture is observed of steps that are not replayed");
  MR_CHECK_EQ(steps_in_flight(), 0, "a capture is observed from now on while steps are in flight");
  observed_recorded_.reset();
  capture_observer_ = observer;
}

void Engine::RunSchedule(size_t plan, int64_t step, const Copies& ahead, const Copies& behind) {
  host_copies_.Flush();
  executor_->BeginRun({static_cast<int32_t>(plan), false, step}, ahead);
  IssueSchedule(plan);  // which ends on the compute stream
  executor_->EndRun(behind);
  validity_.Ran(plan, false);
}

void Engine::IssueSchedule(size_t index) {
  const StepPlan& plan = plans_.plans[index];
  if (options_.adversary_seed) return RunAdversarial(plan, plan.schedule);
  OpObserver* const observer = watcher_ != nullptr && index == train_ ? watcher_ : observer_.get();
  if (options_.graph == GraphMode::kOff || observer != nullptr) {
    executor_->Run(BindingOf(plan), plan.schedule, observer);
    return;
  }
  CaptureObserver* const around = index == train_ ? capture_observer_ : nullptr;
  std::unique_ptr<RecordedStep>& list = around != nullptr ? observed_recorded_ : recorded_[index];
  if (!list)
    list = std::make_unique<RecordedStep>(*executor_, BindingOf(plan), plan.schedule,
                                          options_.graph, around);
  list->Replay(BindingOf(plan));
}

StepScalars Engine::Step(const HostInputs& inputs, int64_t step, const LossTotals& totals) {
  MR_CHECK_EQ(steps_in_flight(), 0, "Step() while steps are in flight: collect them first");
  Enqueue(inputs, step, totals);
  return Collect();
}

void Engine::Enqueue(const HostInputs& inputs, int64_t step, const LossTotals& totals,
                     double max_loss, std::string_view plan) {
  MR_CHECK(train_.has_value(), "this engine has no training plan");
  RequireArena();
  const size_t index = plan.empty() ? *train_ : IndexOf(plan);
  MR_CHECK(plans_.plans[index].updates(), "the {} plan is no step of training", plan);
  const std::vector<std::span<const std::byte>> given = BytesOfInputs(index, inputs);
  MR_CHECK_GT(totals.targets, 0, "a step needs targets");
  MR_CHECK(std::isfinite(totals.weights) && totals.weights >= 0, "weights of a step's targets: {}",
           totals.weights);
  MR_CHECK_LT(steps_in_flight(), kStepsInFlight, "steps in flight");
  const RangeScope range(context_.ranges, [&] { return fmt::format("step {}", step + 1); });
  Stream& compute = stream(StreamId::kCompute);
  InFlight& slot = SlotOf(enqueued_);
  slot.follows = steps_in_flight() > 0;
  if (!slot.follows) compute.Record(*slot.begun);
  StepScalars scalars{};
  scalars.step = step;
  scalars.inv_valid_tokens = 1.0 / static_cast<double>(totals.targets);
  scalars.token_parity = step & 1;
  scalars.max_loss = max_loss;
  if (on_scalars_) on_scalars_(scalars);
  std::memcpy(slot.scalars_in->data(), &scalars, kHostScalarBytes);
  std::byte* const scalars_on_device = StateView(scalars_).data;
  Copies ahead{{scalars_on_device, slot.scalars_in->data(), kHostScalarBytes}};
  EnqueueInputs(given, scalars.token_parity, totals, slot.inputs->data(), ahead);
  Copies behind{{slot.scalars_out->data(), scalars_on_device, sizeof(StepScalars)}};
  if (slot.tallies)
    behind.push_back(
        {slot.tallies->data(), StateView(plans_.states.Of(kTallies)).data, slot.tallies->bytes()});

  validity_.HostWrites(scalars_);
  Prepare(index, step, ahead);
  const StepCounters before = Issued(index);
  RunSchedule(index, step, ahead, behind);
  compute.Record(*slot.done);
  ++enqueued_;
  counters_.AddBetween(before, Issued(index));
}

namespace {

// Makes the sum of a source's weights over the step the count of the targets that there are.
float WeightScale(const std::string& source, const LossTotals& totals) {
  int64_t targets = totals.targets;
  double weights = totals.weights;
  if (source != "weights") {
    const auto of = std::ranges::find(totals.others, source, &LossTotals::OfSource::source);
    MR_CHECK(of != totals.others.end(), "the sum of the weights '{}' is not given", source);
    targets = of->targets;
    weights = of->weights;
    MR_CHECK(std::isfinite(weights) && weights >= 0, "weights of a step's targets, '{}': {}",
             source, weights);
  }
  // Where no target counts, all weights are 0, and so is the loss, whatever the scale.
  if (weights == 0) return 1.0f;
  const auto scale = static_cast<float>(static_cast<double>(targets) / weights);
  MR_REQUIRE(ErrorCode::kData, std::isfinite(scale),
             "the weights '{}' of {} targets add up to {}, too little to divide by in f32", source,
             targets, weights);
  return scale;
}

}  // namespace

void Engine::EnqueueInputs(const std::vector<std::span<const std::byte>>& given, int64_t parity,
                           const LossTotals& totals, std::byte* pinned, Copies& ahead) {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (given[i].empty()) continue;
    const StateTensor& state = plans_.states.tensor(inputs_[i]);
    const TensorView half = Half(inputs_[i], parity);
    MR_CHECK_EQ(static_cast<int64_t>(given[i].size()), half.bytes(),
                "bytes of the input {} of one step", state.name);
    if (state.weighs)
      CopyScaled(given[i], WeightScale(state.name, totals), pinned);
    else
      std::memcpy(pinned, given[i].data(), given[i].size());
    if (half.bytes() <= kMostBytesOfLaunch)
      ahead.push_back({half.data, pinned, half.bytes()});
    else
      context_.device->EnqueueFromHost(half.data, pinned, half.bytes(), stream(StreamId::kCompute));
    validity_.HostWrites(inputs_[i]);
    pinned += RoundUp(half.bytes(), kPinnedAlignment);
  }
}

StepCounters Engine::Issued(size_t plan) const {
  const RecordedStep* const recorded = recorded_[plan].get();
  return {executor_->kernel_counters(), executor_->comm_counters(),
          recorded != nullptr ? recorded->launches() : 0};
}

StepScalars Engine::Collect() {
  MR_CHECK_GT(steps_in_flight(), 0, "no step is in flight");
  const InFlight& slot = SlotOf(collected_);
  context_.device->SyncEvent(*slot.done);
  const Event& begun = slot.follows ? *SlotOf(collected_ - 1).done : *slot.begun;
  step_ms_ = context_.device->MillisecondsBetween(begun, *slot.done);
  ++collected_;
  StepScalars scalars;
  std::memcpy(&scalars, slot.scalars_out->data(), sizeof scalars);
  if (slot.tallies) {
    tallies_.resize(static_cast<size_t>(slot.tallies->bytes()) / sizeof(float));
    std::memcpy(tallies_.data(), slot.tallies->data(), static_cast<size_t>(slot.tallies->bytes()));
  }
  return scalars;
}

// Where position `row` of one sequence lies when the ranks that share it have gathered their rows.
int64_t Engine::GatheredRow(int64_t row) const {
  const int64_t ranks = layout_.mesh.Size(Axis::kContext);
  if (ranks == 1) return row;
  const int64_t rows = plans_.states.tensor(inputs_.front()).window.positions / ranks;
  const GatheredPlace place = PlaceOf(ranks, 1, rows, 0, row);
  return place.outer * rows + place.row;
}

void Engine::Run(std::string_view plan, const HostInputs& inputs, int64_t row) {
  RequireArena();
  const size_t index = IndexOf(plan);
  MR_CHECK(!plans_.plans[index].updates(), "the {} plan runs by Step, or by Enqueue and Collect",
           plan);
  const std::vector<std::span<const std::byte>> given = BytesOfInputs(index, inputs);
  StepScalars scalars = ReadScalars();
  scalars.token_parity = 0;
  scalars.generate_row = GatheredRow(row);
  ClearFaults(scalars);
  WriteScalars(scalars);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (given[i].empty()) continue;
    context_.device->CopyFromHost(Half(inputs_[i], 0).data, given[i].data(),
                                  static_cast<int64_t>(given[i].size()),
                                  stream(StreamId::kCompute));
    validity_.HostWrites(inputs_[i]);
  }
  Copies none;  // these are there already
  Prepare(index, 0, none);
  RunSchedule(index, 0);
  executor_->Sync();
}

}  // namespace millrace
