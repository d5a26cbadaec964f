#include "runtime/exec/op_timer.h"

namespace millrace {

void OpTimer::BeginRun(const StepPlan&) { used_ = 0; }

void OpTimer::Before(const PlanOp& op, int64_t, int) {
  if (used_ == ops_.size()) ops_.push_back({"", device_.MakeTimedEvent(), device_.MakeTimedEvent()});
  ops_[used_].kind = OpName(op.op);
  stream_of_(op.stream).Record(*ops_[used_].begin);
}

void OpTimer::After(const PlanOp& op, int64_t, int) {
  stream_of_(op.stream).Record(*ops_[used_].end);
  ++used_;
}

std::map<std::string, OpTimer::Sum> OpTimer::Collect() {
  std::map<std::string, Sum> sums;
  for (size_t i = 0; i < used_; ++i) {
    const Timed& op = ops_[i];
    device_.SyncEvent(*op.end);
    Sum& sum = sums[op.kind];
    ++sum.count;
    sum.milliseconds += device_.MillisecondsBetween(*op.begin, *op.end);
  }
  return sums;
}

}  // namespace millrace
