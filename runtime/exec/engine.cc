#include "runtime/exec/engine.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/exec/adversary.h"
#include "runtime/exec/checked_memory.h"
#include "runtime/exec/plan_agreement.h"
#include "runtime/plan/layout/param_init.h"

namespace millrace {
namespace {

// Every plan of a run finds the persistent state where the others left it.
void CheckSameState(const StepPlan& a, const StepPlan& b) {
  MR_CHECK_EQ(a.persistent_bytes, b.persistent_bytes,
              "plans {} and {} of one run disagree about the persistent state", Name(a.kind),
              Name(b.kind));
  for (size_t i = 0; i < std::min(a.buffers.size(), b.buffers.size()); ++i) {
    if (a.buffers[i].scope != BufferScope::kPersistent) break;
    MR_CHECK(a.buffers[i].name == b.buffers[i].name && a.buffers[i].offsets == b.buffers[i].offsets,
             "plans {} and {} of one run disagree about {}", Name(a.kind), Name(b.kind),
             a.buffers[i].name);
  }
}

// Evaluation and generation have no faults of their own, whatever the last step was given.
void ClearFaults(StepScalars& scalars) {
  const StepScalars none{};
  scalars.inject_loss_nan = none.inject_loss_nan;
  scalars.inject_grad_unit = none.inject_grad_unit;
}

// The part of the scalars that the host writes for each step; ops write the rest.
constexpr int64_t kHostScalarBytes = offsetof(StepScalars, lr);

}  // namespace

std::vector<const StepPlan*> EnginePlans::All() const {
  std::vector<const StepPlan*> plans;
  for (const auto* plan : {&train, &eval, &generate})
    if (*plan) plans.push_back(&**plan);
  return plans;
}

Engine::Engine(const ExecutorContext& context, ShardLayout layout, EnginePlans plans,
               const EngineOptions& options)
    : context_(context),
      layout_(std::move(layout)),
      plans_(std::move(plans)),
      options_(options),
      executor_(context) {
  int64_t bytes = 0;
  for (const StepPlan* plan : plans_.All()) {
    CheckSameState(AnyPlan(), *plan);
    bytes = std::max(bytes, plan->arena_bytes);
  }
  RequireSamePlans(*context_.comms, layout_, plans_.All());
  arena_ = context_.comms->AllocateArena(*context_.device, bytes, "arena");
  context_.comms->RegisterMemory(arena_->data(), bytes);
  context_.comms->Connect();
  for (size_t f = 0; f < layout_.flats.size(); ++f)
    for (const StateKind kind : {StateKind::kMaster, StateKind::kAdamM, StateKind::kAdamV})
      WriteShard(kind, FlatId{static_cast<int32_t>(f)},
                 std::vector<float>(static_cast<size_t>(layout_.flats[f].shard_numel)));
  WriteScalars(StepScalars{});
  if (plans_.train) AllocateInFlight(*plans_.train);
  if (options_.checked)
    observer_ = std::make_unique<CheckedMemory>(
        layout_.mesh, context_.comms->world().rank(),
        context_.device->captures()
            ? ArenaView(arena_->data(), *context_.device, executor_.stream(StreamId::kCompute))
            : ArenaView(arena_->data()));
  else if (options_.graph != GraphMode::kOff && !options_.adversary_seed)
    Record();
}

void Engine::AllocateInFlight(const StepPlan& plan) {
  Device& device = *context_.device;
  const int64_t bytes = ViewOf(plan, plan.state.tokens).bytes() / 2;
  for (InFlight& slot : in_flight_)
    slot = {device.AllocateHost(bytes, "tokens of a step in flight"),
            device.AllocateHost(kHostScalarBytes, "scalars of a step in flight"),
            device.AllocateHost(sizeof(StepScalars), "results of a step in flight"),
            device.MakeTimedEvent(), device.MakeTimedEvent()};
}

void Engine::Record() {
  std::string offsets;
  const auto record = [&](const std::optional<StepPlan>& plan,
                          std::unique_ptr<RecordedStep>& recorded) {
    if (!plan) return;
    recorded =
        std::make_unique<RecordedStep>(executor_, BindingOf(*plan), plan->schedule, options_.graph);
    offsets += fmt::format("{} {} ", Name(plan->kind), recorded->OffsetsHash());
  };
  record(plans_.train, train_recorded_);
  record(plans_.eval, eval_recorded_);
  record(plans_.generate, generate_recorded_);
  const std::vector<std::string> all = context_.comms->world().HostAllGather(offsets);
  for (size_t r = 0; r < all.size(); ++r)
    MR_CHECK(all[r] == all[0],
             "rank {} has bound its operands at other offsets of its arena than rank 0: {}and {}",
             r, all[r], all[0]);
}

// What is in flight reads and writes memory that is about to go.
Engine::~Engine() {
  try {
    executor_.Sync();
  } catch (const Error&) {
    // The device has failed, and whoever met the failure first has said so.
  }
  // Graphs before what they name, and the transport's knowledge of the arena before the arena.
  train_recorded_.reset();
  observed_recorded_.reset();
  eval_recorded_.reset();
  generate_recorded_.reset();
  context_.comms->UnregisterMemory(arena_->data());
}

int64_t Engine::arena_bytes() const { return arena_->bytes(); }

const StepPlan& Engine::AnyPlan() const {
  const std::vector<const StepPlan*> plans = plans_.All();
  MR_CHECK(!plans.empty(), "an engine needs at least one plan");
  return *plans.front();
}

Binding Engine::BindingOf(const StepPlan& plan) const {
  const int rank = context_.comms->world().rank();
  return {&plan, arena_->data(), layout_.mesh, rank};
}

TensorView Engine::ViewOf(const StepPlan& plan, const View& view) const {
  return BindView(BindingOf(plan), view, plan.buffer(view.buffer).live.front().begin, 0);
}

namespace {
const View& StateView(const StateViews& state, StateKind kind, FlatId flat) {
  const auto f = static_cast<size_t>(flat.value);
  switch (kind) {
    case StateKind::kMaster:
      return state.master[f];
    case StateKind::kAdamM:
      return state.m[f];
    case StateKind::kAdamV:
      return state.v[f];
  }
  MR_FAIL("unknown state kind {}", static_cast<int>(kind));
}
}  // namespace

void Engine::InitWeights(uint64_t seed) {
  const int shard_rank = layout_.mesh.Index(context_.comms->world().rank(), Axis::kShard);
  for (size_t f = 0; f < layout_.flats.size(); ++f) {
    const FlatId flat{static_cast<int32_t>(f)};
    std::vector<float> values(static_cast<size_t>(layout_.flats[f].shard_numel));
    FillShard(layout_, flat, shard_rank, seed, values.data());
    WriteShard(StateKind::kMaster, flat, values);
    for (const StateKind kind : {StateKind::kAdamM, StateKind::kAdamV}) {
      const TensorView view = ViewOf(AnyPlan(), StateView(AnyPlan().state, kind, flat));
      context_.device->EnqueueFill(view.data, std::byte{0}, view.bytes(),
                                   executor_.stream(StreamId::kCompute));
    }
  }
  WriteScalars(StepScalars{});
}

std::vector<float> Engine::ReadShard(StateKind kind, FlatId flat) {
  std::vector<float> values(
      static_cast<size_t>(layout_.flats[static_cast<size_t>(flat.value)].shard_numel));
  ReadShard(kind, flat, values);
  return values;
}

void Engine::ReadShard(StateKind kind, FlatId flat, std::span<float> values) {
  const TensorView view = ViewOf(AnyPlan(), StateView(AnyPlan().state, kind, flat));
  MR_CHECK_EQ(static_cast<int64_t>(values.size()), view.numel(), "shard of flat parameter {}",
              flat.value);
  context_.device->CopyToHost(values.data(), view.data, view.bytes(),
                              executor_.stream(StreamId::kCompute));
}

void Engine::WriteShard(StateKind kind, FlatId flat, std::span<const float> values) {
  const TensorView view = ViewOf(AnyPlan(), StateView(AnyPlan().state, kind, flat));
  MR_CHECK_EQ(static_cast<int64_t>(values.size()), view.numel(), "shard of {}",
              layout_.flat(flat).name);
  context_.device->CopyFromHost(view.data, values.data(), view.bytes(),
                                executor_.stream(StreamId::kCompute));
  if (kind == StateKind::kMaster) derived_valid_ = carried_valid_ = false;
}

StepScalars Engine::ReadScalars() {
  StepScalars scalars;
  const TensorView view = ViewOf(AnyPlan(), AnyPlan().state.scalars);
  context_.device->CopyToHost(&scalars, view.data, sizeof scalars,
                              executor_.stream(StreamId::kCompute));
  return scalars;
}

void Engine::WriteScalars(const StepScalars& scalars) {
  const TensorView view = ViewOf(AnyPlan(), AnyPlan().state.scalars);
  context_.device->CopyFromHost(view.data, &scalars, sizeof scalars,
                                executor_.stream(StreamId::kCompute));
}

void Engine::UploadTokens(const StepPlan& plan, std::span<const int32_t> tokens, int64_t parity) {
  const TensorView view = ViewOf(plan, plan.state.tokens);
  const int64_t half = view.bytes() / 2;
  const int64_t bytes = static_cast<int64_t>(tokens.size_bytes());
  MR_CHECK_LE(bytes, half, "tokens of one step");
  context_.device->CopyFromHost(view.data + parity * half, tokens.data(), bytes,
                                executor_.stream(StreamId::kCompute));
}

void Engine::RunAdversarial(const StepPlan& plan, const std::vector<Entry>& schedule) {
  const Binding binding = BindingOf(plan);
  std::unique_ptr<Adversary>& adversary = adversaries_[&plan];
  if (!adversary)
    adversary = std::make_unique<Adversary>(plan, layout_.mesh, binding.rank, binding.arena,
                                            *options_.adversary_seed);
  std::vector<int64_t> first = {0};  // index of each entry's first op in the order of issue
  for (const Entry& entry : schedule)
    first.push_back(first.back() +
                    static_cast<int64_t>(plan.bodies[static_cast<size_t>(entry.body)].ops.size()));
  adversary->Run(schedule, [&](const Entry& entry, int entry_index, int op_index) {
    executor_.RunOne(binding, entry, op_index, first[static_cast<size_t>(entry_index)] + op_index);
  });
}

void Engine::RunPrologue(const StepPlan& plan, int64_t step) {
  executor_.BeginRun({plan.kind, true, step});
  if (options_.adversary_seed)
    RunAdversarial(plan, plan.prologue);
  else
    executor_.Run(BindingOf(plan), plan.prologue, observer_.get());
  executor_.EndRun();
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

void Engine::RunSchedule(const StepPlan& plan, int64_t step,
                         std::unique_ptr<RecordedStep>& recorded) {
  executor_.BeginRun({plan.kind, false, step});
  IssueSchedule(plan, recorded);
  executor_.EndRun();
}

void Engine::IssueSchedule(const StepPlan& plan, std::unique_ptr<RecordedStep>& recorded) {
  if (options_.adversary_seed) return RunAdversarial(plan, plan.schedule);
  OpObserver* const observer =
      watcher_ != nullptr && plan.kind == PlanKind::kTrain ? watcher_ : observer_.get();
  if (options_.graph == GraphMode::kOff || observer != nullptr) {
    executor_.Run(BindingOf(plan), plan.schedule, observer);
    return;
  }
  CaptureObserver* const around = plan.kind == PlanKind::kTrain ? capture_observer_ : nullptr;
  std::unique_ptr<RecordedStep>& list = around != nullptr ? observed_recorded_ : recorded;
  if (!list)
    list = std::make_unique<RecordedStep>(executor_, BindingOf(plan), plan.schedule, options_.graph,
                                          around);
  list->Replay(BindingOf(plan));
}

StepScalars Engine::Step(std::span<const int32_t> tokens, int64_t step, int64_t valid_tokens,
                         const Injection& injection) {
  MR_CHECK_EQ(steps_in_flight(), 0, "Step() while steps are in flight: collect them first");
  Enqueue(tokens, step, valid_tokens, injection);
  return Collect();
}

void Engine::Enqueue(std::span<const int32_t> tokens, int64_t step, int64_t valid_tokens,
                     const Injection& injection, double max_loss) {
  MR_CHECK(plans_.train.has_value(), "this engine has no training plan");
  const StepPlan& plan = *plans_.train;
  const TensorView token_view = ViewOf(plan, plan.state.tokens);
  const auto bytes = static_cast<int64_t>(tokens.size_bytes());
  MR_CHECK_EQ(bytes, token_view.bytes() / 2, "tokens of one step");
  MR_CHECK_GT(valid_tokens, 0, "a step needs targets");
  MR_CHECK_LT(steps_in_flight(), kStepsInFlight, "steps in flight");
  const RangeScope range(context_.ranges, [&] { return fmt::format("step {}", step + 1); });
  Device& device = *context_.device;
  Stream& compute = executor_.stream(StreamId::kCompute);
  InFlight& slot = SlotOf(enqueued_);
  slot.follows = steps_in_flight() > 0;
  if (!slot.follows) compute.Record(*slot.begun);
  StepScalars scalars{};
  scalars.step = step;
  scalars.inv_valid_tokens = 1.0 / static_cast<double>(valid_tokens);
  scalars.token_parity = step & 1;
  scalars.inject_loss_nan = injection.loss_nan;
  scalars.inject_grad_unit = injection.grad_unit;
  scalars.max_loss = max_loss;
  std::memcpy(slot.tokens->data(), tokens.data(), tokens.size_bytes());
  std::memcpy(slot.scalars_in->data(), &scalars, kHostScalarBytes);
  std::byte* const scalars_on_device = ViewOf(plan, plan.state.scalars).data;
  device.EnqueueFromHost(token_view.data + scalars.token_parity * bytes, slot.tokens->data(), bytes,
                         compute);
  device.EnqueueFromHost(scalars_on_device, slot.scalars_in->data(), kHostScalarBytes, compute);

  if (!carried_valid_) RunPrologue(plan, step);
  const CommCounters comm_before = executor_.comm_counters();
  const KernelCounters kernels_before = executor_.kernel_counters();
  const int64_t launches_before = train_recorded_ ? train_recorded_->launches() : 0;
  if (injection.skip_unit >= 0 || injection.swap_unit >= 0) {  // a recorded step has all, in order
    if (injection.skip_unit >= 0)
      executor_.LeaveOutCollectives(UnitId{static_cast<int32_t>(injection.skip_unit)});
    if (injection.swap_unit >= 0)
      executor_.SwapCollectives(UnitId{static_cast<int32_t>(injection.swap_unit)});
    executor_.BeginRun({plan.kind, false, step});
    executor_.Run(BindingOf(plan), plan.schedule, observer_.get());
    executor_.EndRun();
  } else {
    RunSchedule(plan, step, train_recorded_);
  }
  device.EnqueueToHost(slot.scalars_out->data(), scalars_on_device, sizeof(StepScalars), compute);
  compute.Record(*slot.done);
  ++enqueued_;
  counters_.comm += executor_.comm_counters() - comm_before;
  counters_.kernels += executor_.kernel_counters() - kernels_before;
  counters_.graph_launches += train_recorded_ ? train_recorded_->launches() - launches_before : 0;
  derived_valid_ = carried_valid_ = true;
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
  return scalars;
}

double Engine::EvalLossSum(std::span<const int32_t> tokens) {
  MR_CHECK(plans_.eval.has_value(), "this engine has no evaluation plan");
  const StepPlan& plan = *plans_.eval;
  StepScalars scalars = ReadScalars();
  scalars.token_parity = 0;
  ClearFaults(scalars);
  WriteScalars(scalars);
  UploadTokens(plan, tokens, 0);
  if (!derived_valid_) RunPrologue(plan, 0);
  derived_valid_ = true;
  carried_valid_ = false;
  RunSchedule(plan, 0, eval_recorded_);
  executor_.Sync();
  const StatsRow row(static_cast<int64_t>(layout_.flats.size()));
  double sum = 0;
  const TensorView stats = ViewOf(plan, plan.state.stats);
  const int64_t cell = BindingOf(plan).rank * row.width + row.loss_sum;
  context_.device->CopyToHost(&sum, stats.data + cell * static_cast<int64_t>(sizeof sum),
                              sizeof sum, executor_.stream(StreamId::kCompute));
  return sum;
}

std::vector<float> Engine::Logits(std::span<const int32_t> tokens, int64_t row, int64_t vocab) {
  MR_CHECK(plans_.generate.has_value(), "this engine has no generation plan");
  const StepPlan& plan = *plans_.generate;
  StepScalars scalars = ReadScalars();
  scalars.token_parity = 0;
  scalars.generate_row = row;
  ClearFaults(scalars);
  WriteScalars(scalars);
  UploadTokens(plan, tokens, 0);
  if (!derived_valid_) RunPrologue(plan, 0);
  derived_valid_ = true;
  carried_valid_ = false;
  RunSchedule(plan, 0, generate_recorded_);
  executor_.Sync();
  const View& view = plan.state.logits;
  const int64_t last = plan.schedule.back().body;
  const int64_t position = plan.bodies[static_cast<size_t>(last)].end() - 1;
  const TensorView logits = BindView(BindingOf(plan), view, position, 0);
  std::vector<float> values(static_cast<size_t>(vocab));
  context_.device->CopyToHost(values.data(), logits.data,
                              vocab * static_cast<int64_t>(sizeof(float)),
                              executor_.stream(StreamId::kCompute));
  return values;
}

}  // namespace millrace
