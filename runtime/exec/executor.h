// Runs plans: the eager walk binds and issues each op. It waits for events, and records them, where
// the plan has edges, and decides nothing. A step that is bound once is recorded_step.h's.
//
// Order    A run begins by joining all streams to compute and ends by joining compute to all
//          streams.
// Counters A communicator counts what is issued to it (comm/communicator.h), a captured call
//          included; recorded_step.h says what a replay adds.
// Host     Nothing here waits for the device but Sync().
// Threads  One executor per rank, used by one thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/device.h"
#include "runtime/base/policies.h"
#include "runtime/base/profiler_ranges.h"
#include "runtime/exec/agreement/order_log.h"
#include "runtime/exec/bound_op.h"
#include "runtime/exec/executor_context.h"
#include "runtime/exec/observe/observers.h"
#include "runtime/exec/observe/op_ranges.h"
#include "runtime/exec/observe/progress.h"

namespace millrace {

// What is marked around an op, by a communicator itself where it can (MarkNextCall), and where it
// stands in the order of issue.
struct OpMark {
  int64_t index = 0;
  int32_t unit = -1;  // UnitId; -1: none
  bool collective = false;
  // The compute stream comes to another unit. Not marked in a world of one rank: nobody waits for
  // it, and each mark is 1.4 us of a chain of small kernels (cuda_mark.h).
  bool boundary = false;
  RangeName range = {};  // where somebody listens
};

class Executor {
 public:
  explicit Executor(const ExecutorContext& context);
  ~Executor();

  // Around the runs of a plan's prologue or schedule, by whichever executor: numbers and marks
  // them. Copies of BeginRun go ahead of all that the run does, those of EndRun behind it, each in
  // one launch with the marks.
  void BeginRun(const RunInfo& run, std::span<const Device::Copy> copies = {});
  void EndRun(std::span<const Device::Copy> copies = {});

  // Walks `schedule` (plan.schedule or plan.prologue) eagerly. `observer` may be null.
  void Run(const Binding& binding, const std::vector<Entry>& schedule, OpObserver* observer);

  // One op, at once, on its stream: for executors that choose their own order. `index`: of the op,
  // in the schedule's order of issue.
  void RunOne(const Binding& binding, const Entry& entry, int op_index, int64_t index);

  // From now on. Every rank or none.
  void LogOrder() { order_ = std::make_unique<OrderLog>(context_.comms->members().size()); }
  const OrderLog* order() const { return order_.get(); }  // null: not logged

  Stream& stream(StreamId id) { return *streams_.at(static_cast<size_t>(id)); }
  // What was issued so far, replays included.
  const KernelCounters& kernel_counters() const { return kernel_counters_; }
  CommCounters comm_counters() const;
  const ExecutorContext& context() const { return context_; }
  void Sync();

 private:
  friend class RecordedStep;
  void Fork();
  void Join();
  Event& EventAt(size_t index);
  // stream: the plan's, by which its communicator is known; on: where it is issued.
  void RunMarked(const BoundOp& op, StreamId stream, StreamId on, const OpMark& mark);
  // Whether a kernel of marks stands ahead of what is no collective.
  bool IsMarked(const OpMark& mark) const;
  void Log(const BoundOp& op, StreamId stream, const OpMark& mark);  // a collective
  bool marks_on_device() const { return words_ != nullptr; }
  void EnqueueMark(const Device::Mark& mark, StreamId on);
  void EnqueueTogether(std::span<const Device::Copy> copies, std::span<const Device::Mark> marks);
  RangeName RangeOf(const PlanOp& op) { return ranges_ ? ranges_->NameOf(op) : RangeName{}; }
  std::byte* WordAt(int word) const;

  ExecutorContext context_;
  std::unique_ptr<HostBuffer> words_;  // where a device writes its marks
  std::array<std::unique_ptr<Stream>, kStreams> streams_;
  std::vector<std::unique_ptr<Event>> events_;
  KernelCounters kernel_counters_;
  CommCounters replayed_;  // by graphs: communicators only count what is issued to them
  uint64_t number_ = 0;    // of the run begun last
  int64_t enqueued_marks_ = 0;
  std::unique_ptr<OrderLog> order_;
  std::optional<OpRanges> ranges_;  // where somebody listens
};

}  // namespace millrace
