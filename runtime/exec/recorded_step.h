// A step's list of ops, bound once: issued the first time and, on a device that captures, replayed
// as a graph from then on; a host device issues the list again. Like the eager walk (executor.h),
// it decides nothing.
//
// Counters A launch of a captured graph adds what its capture counted: the walk that made the graph
//          is the only source of that figure, so an op that the walk left out is not in it, and
//          neither is what the plan predicts. Lists that a host device issues again are counted
//          anew each time, byte by byte. On GPUs tools/bench/wire_check.py compares 100 replayed
//          steps with what the links counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/device.h"
#include "runtime/base/policies.h"
#include "runtime/exec/bound_op.h"
#include "runtime/exec/executor.h"

namespace millrace {

// The list of a step's ops, bound once. kStep: one launch per step; kMicrobatch: one per body, with
// all streams joined at each end.
//
// Capture  The first replay issues the ops: it is a step like any other, and all that libraries
//          load or build at first use is then there. The second captures the same list at the same
//          addresses; from then on a replay is a launch. A host device has the same second replay
//          but for the capture itself.
// Chains   Where each op waits for the one before it (IsChain), exchanges of values are issued on
//          the compute stream, too: they have nothing to be beside, and kernels next to them may
//          begin early (runtime/base/cuda/launch.h). Decoding with a tensor axis is so.
// Together Linears of one row that stand one behind the other go to the kernel table at once, which
//          may have one launch for several of them (KernelTable::row_linears). Not where somebody
//          observes the capture, op by op, and not in a step with collectives: such a launch wants
//          the whole device, which a peers' kernel beside it has a part of.
// Ranks    All capture or none. Before a capture every rank waits for its device and says whether
//          it is ready; after it, whether it has captured. Replays of a list are collective.
class RecordedStep {
 public:
  // `executor`, `observer` and what `binding` names outlive this object.
  RecordedStep(Executor& executor, const Binding& binding, const std::vector<Entry>& schedule,
               GraphMode mode, CaptureObserver* observer = nullptr);
  ~RecordedStep();

  // `now`: where the plan is bound now. Errors: kInternal, naming both addresses, when the arena is
  // not where the list was bound; when a rank is not ready or its capture fails, the same error on
  // all ranks, which names that rank and its cause, and nothing is launched.
  void Replay(const Binding& now);
  // Throws Error(kInternal) naming the op, the operand and both addresses unless
  // `binding` puts every operand where the recorded list has it: a graph would go on
  // reading and writing the old place.
  void CheckAddresses(const Binding& binding) const;
  // XXH3-128 of where every operand of the list lies, in the arena and less this rank's part of a
  // rank stride: equal on all ranks of a run.
  std::string OffsetsHash() const;
  bool issued() const { return issued_; }  // has been replayed
  int64_t launches() const {
    return launches_;
  }                       // since construction; on a host device, lists issued
  int64_t nodes() const;  // of the captured graphs; 0 before
  int64_t mark_nodes() const { return mark_nodes_; }  // of these, a watchdog's
  // What is replayed, in Graphviz's language: the captured graphs as their device writes them; on a
  // host device, or before a capture, the recorded lists, a node per op, with the order on each
  // stream and the plan's edges between streams. One file per list, named by DotPaths. Error(kIo)
  // names the file.
  void WriteDot(const std::string& path) const;
  // `path` where a step is one list; else path with .0, .1, ... before its suffix.
  std::vector<std::string> DotPaths(const std::string& path) const;

 private:
  struct Issue {
    BoundOp op;
    StreamId stream = StreamId::kCompute,
             on = StreamId::kCompute;  // the plan's, where it is issued
    OpMark mark;
    std::vector<size_t> waits;  // events
    int64_t record = -1;        // event, -1 none
    int entry = 0, index = 0;   // of the schedule, of the body's ops
  };
  struct Section {
    std::vector<Issue> issues;
    std::unique_ptr<Graph> graph;
    KernelCounters kernels;  // counted while the graph was captured: what one launch moves
    CommCounters comm;
  };
  void IssueAllOnCompute();
  void IssueAll(const Section& section, CaptureObserver* observer);
  std::vector<const RowLinearOp<TensorView>*> RowsFrom(const std::vector<Issue>& issues,
                                                       size_t first) const;
  size_t IssueTogether(const std::vector<Issue>& issues, size_t first);
  const PlanOp& OpOf(const Issue& issue) const;
  void CaptureTogether(const Binding& now);
  void Capture(Section& section);
  std::string DotOf(const Section& section) const;
  void Launch(const Section& section, bool counted);
  std::vector<size_t> Joined() const;
  void RequireAll(const std::string& what, const std::function<void()>& step);

  Executor& executor_;
  const StepPlan& plan_;
  const Binding bound_;
  CaptureObserver* const observer_;
  const std::vector<Entry> schedule_;
  std::vector<Section> sections_;
  // Where somebody listens.
  RangeName capture_range_ = {}, launch_range_ = {}, together_range_ = {};
  bool collectives_ = false;  // in the list
  bool issued_ = false, captured_ = false;
  int64_t launches_ = 0, mark_nodes_ = 0;
};

}  // namespace millrace
