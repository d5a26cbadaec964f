// One rank's training state and the plans that act on it: one arena, one layout, executors. No
// data, no files, no loop: batches, evaluation, saving and requests to stop are the loop's
// (runtime/run/training/training.h). Device and communicators are the session's and outlive the
// engine (runtime/run/session.h).
//
// States are written from outside only through what is below; where a plan would find one that is
// not valid any more, the engine runs the plan's prologue first by itself (check/seams.h), but for
// LaunchInEra.
// Errors   As the communicator's and kernels'; a failed Step leaves the engine unusable.
// Threads  One engine per rank, used by one thread. Engines share nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/device.h"
#include "runtime/base/step_scalars.h"
#include "runtime/base/stream_id.h"
#include "runtime/exec/arena/host_copies.h"
#include "runtime/exec/engine_options.h"
#include "runtime/exec/era_run.h"
#include "runtime/exec/executor_context.h"
#include "runtime/exec/released_arena.h"
#include "runtime/exec/step_counters.h"
#include "runtime/exec/step_inputs.h"
#include "runtime/plan/check/seams.h"
#include "runtime/plan/layout/shard_layout.h"
#include "runtime/plan/state_layout.h"

namespace millrace {

class Adversary;
class CaptureObserver;
class Executor;
class OpObserver;
class OrderLog;
class RecordedStep;
struct Binding;

class Engine {
 public:
  // Allocates the arena of the largest plan, and all else that steps use of host memory and of the
  // device's. A collective; before any of that, Error(kInternal) where plans and states do not fit
  // together (CheckSeams), Error(kConfig) unless all ranks plan the same
  // (agreement/plan_agreement.h). What is recorded is bound here, and Error(kInternal) names a rank
  // whose operands lie at other offsets of its arena than rank 0's.
  Engine(const ExecutorContext& context, ShardLayout layout, RunPlans plans,
         const EngineOptions& options);
  ~Engine();

  const ShardLayout& layout() const { return layout_; }
  const RunPlans& plans() const { return plans_; }
  int64_t arena_bytes() const;
  Stream& stream(StreamId id);
  Device& device() const { return *context_.device; }
  CommSet& comms() { return *context_.comms; }
  const KernelTable& kernels() const { return *context_.kernels; }
  ProgressMarks* marks() const { return context_.marks; }

  // Master weights by the counter-based generator, moments zero, scalars zero.
  void InitWeights(uint64_t seed);

  // Copies of this rank's shard [shard_numel], f32, of a state slot ("master", "adam_m"): what is
  // kept as bf16 is widened, and rounded to nearest where it is written.
  // WriteShard invalidates what is made from it. A read into a HostBuffer is faster.
  std::vector<float> ReadShard(std::string_view slot, FlatId flat);
  void ReadShard(std::string_view slot, FlatId flat, std::span<float> values);
  void WriteShard(std::string_view slot, FlatId flat, std::span<const float> values);

  // Where this rank's shard of a slot lies on the device: to read, while no plan runs.
  TensorView ShardView(std::string_view slot, FlatId flat) const;

  StepScalars ReadScalars();
  void WriteScalars(const StepScalars& scalars);

  // One training step: Enqueue, then Collect. inputs: its `accumulate` microbatches; step: 0-based,
  // the device forms the learning rate from it; totals: the same on all ranks. Where a loss has
  // weights (LossSpec), what the host gives is multiplied by totals.targets / totals.weights on its
  // way to the device, in f32: then one number divides all losses, and weights that are all 1
  // change no bit.
  StepScalars Step(const HostInputs& inputs, int64_t step, const LossTotals& totals);

  // Called with the scalars of each training step from now on before they go to the device; null:
  // nothing is.
  void OnScalars(std::function<void(StepScalars&)> call) { on_scalars_ = std::move(call); }

  // Training steps from now on walk eagerly, watched by `observer`; null: as before. Not in checked
  // execution, which has an observer of its own.
  void Observe(OpObserver* observer);

  // Whether training steps are graphs: the first is issued, the second captured, others replayed.
  bool replays() const {
    return context_.device->captures() && options_.graph != GraphMode::kOff && !options_.checked &&
           !options_.adversary_seed;
  }
  // Training steps from now on replay graphs of their own, which are captured around `observer` as
  // the plain ones are. Null: those again, and the others go. Where replays().
  void ObserveCapture(CaptureObserver* observer);

  // Enqueue issues a step and returns; the inputs may change then. Collect waits for the oldest
  // step that was not collected yet and returns its scalars, the loss among them. Between the two
  // the device works and the host need not: Enqueue itself does not wait for the device (but see
  // lag()). More than kStepsInFlight steps are an error. On a host device the step has run when
  // Enqueue returns.
  static constexpr int kStepsInFlight = 4;
  // max_loss: a step whose loss is above it applies no update; 0: no limit. plan: which step of
  // training; "": the first.
  void Enqueue(const HostInputs& inputs, int64_t step, const LossTotals& totals,
               double max_loss = 0, std::string_view plan = "");
  StepScalars Collect();
  // Of the step collected last: what it tallied, in the order of its plan's StepPlan::tallies and
  // overflows; none: nothing. What other plans tally beyond that is stale.
  std::span<const float> tallies() const { return tallies_; }
  // Of the step collected last, on the device: from the end of the step before it to its own end;
  // from its own start where no step was in flight when it was issued.
  double step_ms() const { return step_ms_; }
  // Steps to leave in flight in a loop of Enqueue and Collect. One keeps the device busy: its next
  // step is queued while it runs one. With more, CUDA's queue of launches fills up (three graphs of
  // about a thousand nodes, seen on an H200), and Enqueue blocks for half a step.
  int lag() const { return context_.device->captures() ? 1 : 0; }
  int steps_in_flight() const { return static_cast<int>(enqueued_ - collected_); }

  // Runs a plan without an update on `inputs`, for the position `row` of them where it is about
  // one, and waits for it. Every rank.
  void Run(std::string_view plan, const HostInputs& inputs, int64_t row = 0);
  // Runs the plan's prologue, where it would begin with it. A collective.
  void BeginEra(std::string_view plan);
  // A plan that looks at no inputs (era_run.h). Error(kInternal): it needs its prologue.
  int64_t LaunchInEra(const EraRun& run);
  const std::vector<std::span<const std::byte>>& CollectInEra(int64_t run);
  void DropInEra() noexcept;

  // The first `bytes` of an output of the plan that was run last.
  void ReadOutput(std::string_view plan, std::string_view output, void* to, int64_t bytes);
  // Of the plan that ran last, by the loss's name: this rank's sum over its targets, not weighted.
  // No step may be in flight.
  std::map<std::string, double> LossSums();

  // Of the eval plan. Sum over the targets of one microbatch of all held-out losses, each times its
  // weight: this rank's part. Weights of targets are taken as they are given.
  double EvalLossSum(const HostInputs& inputs);

  // Of the generate plan. Logits [vocab] that follow row `row` of tokens [T] (later entries do not
  // matter). Every rank calls it with the same arguments.
  std::vector<float> Logits(std::span<const int32_t> tokens, int64_t row, int64_t vocab);

  // Gives the memory of a part of the arena back (released_arena.h). Until Acquire() plans, and
  // states that lie there, are Error(kInvalidArgument). Refused so on all ranks alike: a second
  // release, an acquisition without one, steps in flight, an arena that EngineOptions::releasable
  // did not ask for. Error(kOutOfMemory) of one rank is every rank's. A refusal changes nothing.
  MovedMemory Release(ArenaPart part);
  MovedMemory Acquire();
  const ReleasedArena* released() const { return released_ ? &*released_ : nullptr; }
  const std::string& WhyNotReleasable() const { return why_kept_; }  // "": it can

  // Where the plan's bytes are on this rank: for who runs ops of it alone.
  Binding BindingOf(const StepPlan& plan) const;

  // Logs the collectives that are issued from now on, in all plans. Every rank or none.
  void LogOrder();
  const OrderLog* order() const;  // null: not logged

  // The training step's; null where steps are walked.
  const RecordedStep* recorded_step() const { return train_ ? recorded_[*train_].get() : nullptr; }

  // Of training steps alone; a checkpoint sets them.
  const StepCounters& counters() const { return counters_; }
  void SetCounters(const StepCounters& counters) { counters_ = counters; }

 private:
  void AllocateArena(int64_t bytes);
  void RequireArena() const;
  void AllocateInFlight();
  void Record();
  TensorView StateView(BufferId state) const;
  TensorView OutputView(std::string_view plan, std::string_view output) const;
  BufferId SlotOf(std::string_view slot, FlatId flat) const;
  size_t IndexOf(std::string_view plan) const;
  void RequireFound(size_t plan, bool prologue) const;
  using Copies = std::vector<Device::Copy>;  // small ones, in a launch ahead of a run or behind it
  void Prepare(size_t plan, int64_t step, Copies& ahead);  // goes ahead of a prologue: none is left
  void RunAdversarial(const StepPlan& plan, const std::vector<Entry>& schedule);
  void RunPrologue(size_t plan, int64_t step, const Copies& ahead = {});
  void RunSchedule(size_t plan, int64_t step, const Copies& ahead = {}, const Copies& behind = {});
  void IssueSchedule(size_t plan);
  // The half of an input's state that `parity` names.
  TensorView Half(BufferId input, int64_t parity) const;
  int64_t GatheredRow(int64_t row) const;
  // What this rank reads of each of inputs_: all of the data rank's, or its chunks of sequences;
  // nothing of what the plan does not read and is not given. Error(kInternal) unless the others
  // are given, fit, and no others are.
  std::vector<std::span<const std::byte>> BytesOfInputs(size_t plan, const HostInputs& inputs);
  // By way of `pinned`; small ones are left to `ahead`. What weighs targets, scaled to their count.
  void EnqueueInputs(const std::vector<std::span<const std::byte>>& given, int64_t parity,
                     const LossTotals& totals, std::byte* pinned, Copies& ahead);
  StepCounters Issued(size_t plan) const;  // by all runs so far: a step counts the difference

  // Host ends of a step in flight. Each is used again once its step was collected.
  struct InFlight {
    std::unique_ptr<HostBuffer> inputs, scalars_in, scalars_out, tallies;
    std::unique_ptr<Event> begun, done;  // timed
    bool follows = false;                // issued while the step before it was in flight
  };
  InFlight& SlotOf(int64_t number) {
    return in_flight_[static_cast<size_t>(number) % in_flight_.size()];
  }

  ExecutorContext context_;
  ShardLayout layout_;
  const RunPlans plans_;                // const: what was bound stays where the plan has it
  const std::vector<BufferId> inputs_;  // states, by source
  // Of inputs: what BytesOfInputs last put together, and cut out.
  std::vector<std::vector<std::byte>> filled_, chunks_;
  const BufferId scalars_;
  std::optional<size_t> train_;  // the plan of a step, one of plans_
  StateValidity validity_;
  EngineOptions options_;
  std::unique_ptr<DeviceBuffer> arena_;
  PagedBuffer* pages_ = nullptr;  // arena_, where it is of pages; else there is a reason
  std::string why_kept_;
  std::optional<ReleasedArena> released_;
  std::unique_ptr<Executor> executor_;
  HostCopies host_copies_;                               // of runs of an era
  std::vector<std::unique_ptr<RecordedStep>> recorded_;  // by plan
  CaptureObserver* capture_observer_ = nullptr;
  std::unique_ptr<RecordedStep> observed_recorded_;  // the training step's, around that
  std::unique_ptr<OpObserver> observer_;             // checked only
  OpObserver* watcher_ = nullptr;                    // of training steps, from outside
  std::function<void(StepScalars&)> on_scalars_;
  std::map<const StepPlan*, std::unique_ptr<Adversary>> adversaries_;  // with a seed; by plan
  const StepPlan* last_adversarial_ = nullptr;                         // the plan that has run last
  // One more: a step's time begins at the end of another.
  std::array<InFlight, kStepsInFlight + 1> in_flight_;
  int64_t enqueued_ = 0, collected_ = 0;
  double step_ms_ = 0;
  std::vector<float> tallies_;
  StepCounters counters_;
};

}  // namespace millrace
