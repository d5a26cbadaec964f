#include "runtime/exec/observe/replay_timer.h"

#include "runtime/base/error.h"

namespace millrace {

void ReplayTimer::BeginGraph() { last_.fill(std::nullopt); }

size_t ReplayTimer::RecordOn(Stream& stream) {
  events_.push_back(device_.MakeTimedEvent());
  device_.RecordAtLaunch(*events_.back(), stream);
  return events_.size() - 1;
}

void ReplayTimer::Before(const PlanOp& op, Stream& stream, bool waits) {
  std::optional<size_t>& last = last_[static_cast<size_t>(op.stream)];
  if (waits || !last) last = RecordOn(stream);
  ops_.push_back({&op, *last, 0});
}

void ReplayTimer::After(const PlanOp& op, Stream& stream) {
  ops_.back().end = RecordOn(stream);
  last_[static_cast<size_t>(op.stream)] = ops_.back().end;
}

void ReplayTimer::SetOrigin(Stream& compute) {
  if (!origin_) origin_ = device_.MakeTimedEvent();
  compute.Record(*origin_);
  device_.SyncEvent(*origin_);
}

std::vector<OpSpan> ReplayTimer::Spans() {
  MR_CHECK(origin_ != nullptr, "spans without an origin");
  std::vector<double> at;
  for (const auto& event : events_) {
    device_.SyncEvent(*event);
    at.push_back(device_.MillisecondsBetween(*origin_, *event));
  }
  std::vector<OpSpan> spans;
  for (const Timed& timed : ops_)
    spans.push_back({timed.op->label, std::string(OpName(timed.op->op)), timed.op->stream,
                     at[timed.begin], at[timed.end]});
  return spans;
}

}  // namespace millrace
