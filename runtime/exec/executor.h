// Runs plans: the eager walk binds and issues each op; the recorded step binds once and issues the list again
// and again without looking at the plan. Both wait and record events where the plan has edges. They decide
// nothing.
//
// Order    A run begins by joining all streams to compute and ends by joining compute to all streams.
// Threads  One executor per rank, used by one thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/base/device.h"
#include "runtime/exec/bound_op.h"

namespace millrace {

// Called around each op of an eager walk: checked execution and its tests. Positions are on the canonical
// timeline.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void BeginRun(const StepPlan& plan) = 0;
  virtual void Before(const PlanOp& op, int64_t position, int microbatch) = 0;
  virtual void After(const PlanOp& op, int64_t position, int microbatch) = 0;
  virtual void EndRun() = 0;
};

struct ExecutorContext {
  Device* device = nullptr;
  const KernelTable* kernels = nullptr;
  CommSet* comms = nullptr;
};

class Executor {
 public:
  explicit Executor(const ExecutorContext& context);

  // Walks `schedule` (plan.schedule or plan.prologue) eagerly. `observer` may be null.
  void Run(const Binding& binding, const std::vector<Entry>& schedule, OpObserver* observer);

  // One op, at once, on its stream: for executors that choose their own order.
  void RunOne(const Binding& binding, const Entry& entry, int op_index);

  Stream& stream(StreamId id) { return *streams_[static_cast<size_t>(id)]; }
  KernelCounters& counters() { return counters_; }
  const ExecutorContext& context() const { return context_; }
  void Sync();

 private:
  friend class RecordedStep;
  void Fork();
  void Join();
  Event& EventAt(size_t index);

  ExecutorContext context_;
  std::array<std::unique_ptr<Stream>, kStreams> streams_;
  std::vector<std::unique_ptr<Event>> events_;
  KernelCounters counters_;
};

enum class GraphMode { kStep, kMicrobatch, kOff };

// The list of a step's ops, bound once. kStep: one launch per step; kMicrobatch: one per body, with all
// streams joined at each end.
class RecordedStep {
 public:
  RecordedStep(Executor& executor, const Binding& binding, const std::vector<Entry>& schedule,
               GraphMode mode);

  void Replay();
  int64_t launches() const { return launches_; }  // since construction

 private:
  struct Issue {
    BoundOp op;
    StreamId stream = StreamId::kCompute;
    std::vector<size_t> waits;  // events
    int64_t record = -1;        // event, -1 none
  };
  Executor& executor_;
  std::vector<std::vector<Issue>> graphs_;
  int64_t launches_ = 0;
};

}  // namespace millrace
