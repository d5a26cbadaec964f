#include "runtime/exec/observe/op_timer.h"

#include "runtime/base/error.h"

namespace millrace {

void OpTimer::BeginRun(const StepPlan&) { used_ = 0; }

void OpTimer::Before(const PlanOp& op, int64_t, int) {
  if (used_ == ops_.size())
    ops_.push_back({"", "", op.stream, device_.MakeTimedEvent(), device_.MakeTimedEvent()});
  ops_[used_].kind = OpName(op.op);
  ops_[used_].label = op.label;
  ops_[used_].stream = op.stream;
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

void OpTimer::SetOrigin() {
  if (!origin_) origin_ = device_.MakeTimedEvent();
  stream_of_(StreamId::kCompute).Record(*origin_);
  device_.SyncEvent(*origin_);
}

std::vector<OpSpan> OpTimer::Spans() {
  MR_CHECK(origin_ != nullptr, "spans without an origin");
  std::vector<OpSpan> spans;
  for (size_t i = 0; i < used_; ++i) {
    const Timed& op = ops_[i];
    device_.SyncEvent(*op.end);
    spans.push_back({op.label, op.kind, op.stream, device_.MillisecondsBetween(*origin_, *op.begin),
                     device_.MillisecondsBetween(*origin_, *op.end)});
  }
  return spans;
}

}  // namespace millrace
