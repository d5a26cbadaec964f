#include "runtime/exec/recorded_step.h"

#include <map>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>
#include <variant>

#include "comm/agree.h"
#include "runtime/base/error.h"
#include "runtime/data/hash.h"
#include "runtime/exec/issue_order.h"

namespace millrace {
namespace {

// At its end the host issues nothing.
struct EndOfIssue {
  ProgressMarks* marks;  // null: nobody looks
  ~EndOfIssue() {
    if (marks != nullptr) marks->EndIssue();
  }
};

}  // namespace

RecordedStep::RecordedStep(Executor& executor, const Binding& binding,
                           const std::vector<Entry>& schedule, GraphMode mode,
                           CaptureObserver* observer)
    : executor_(executor),
      plan_(*binding.plan),
      bound_(binding),
      observer_(observer),
      schedule_(schedule) {
  MR_CHECK(mode != GraphMode::kOff, "nothing is recorded with execution.graph=off");
  if (ProfilerRanges* const ranges = executor_.context_.ranges; ranges != nullptr) {
    capture_range_ = ranges->Register("capture of a graph");
    launch_range_ = ranges->Register("launch of a graph");
    together_range_ = ranges->Register("linears of one row");
  }
  const EventMap events = NumberEvents(schedule);
  int64_t begun = 0;
  for (size_t e = 0; e < schedule.size(); ++e) {
    const Entry& entry = schedule[e];
    const Body& body = binding.plan->body(entry);
    OpMarker marker(begun);
    begun += static_cast<int64_t>(body.ops.size());
    if (e == 0 || mode == GraphMode::kMicrobatch) sections_.emplace_back();
    std::vector<Issue>& issues = sections_.back().issues;
    const size_t first_waiting = issues.size();
    for (size_t o = 0; o < body.ops.size(); ++o) {
      const PlanOp& op = body.ops[o];
      Issue issue;
      issue.op = BindOp(binding, op.op, body.begin + static_cast<int64_t>(o), entry.microbatch);
      issue.stream = issue.on = op.stream;
      issue.mark = marker.Next(op);
      issue.mark.range = executor_.RangeOf(op);
      collectives_ |= issue.mark.collective;
      issue.entry = static_cast<int>(e);
      issue.index = static_cast<int>(o);
      const auto recorded = events.find({static_cast<int32_t>(e), static_cast<int32_t>(o)});
      if (recorded != events.end()) issue.record = static_cast<int64_t>(1 + recorded->second);
      issues.push_back(std::move(issue));
    }
    for (const Edge& edge : entry.edges) {
      // The join at a graph's end already orders everything before it.
      if (mode == GraphMode::kMicrobatch && edge.from_entry != static_cast<int32_t>(e)) continue;
      issues[first_waiting + static_cast<size_t>(edge.to_op)].waits.push_back(
          1 + events.at({edge.from_entry, edge.from_op}));
    }
  }
  if (IsChain(plan_, schedule_)) IssueAllOnCompute();
}

// The order of the stream is that of the events. What a collective's marks say, the boundary behind
// it need not say again.
void RecordedStep::IssueAllOnCompute() {
  for (Section& section : sections_)
    for (size_t i = 0; i < section.issues.size(); ++i) {
      Issue& issue = section.issues[i];
      issue.on = StreamId::kCompute;
      issue.waits.clear();
      issue.record = -1;
      if (i > 0 && section.issues[i - 1].mark.collective) issue.mark.boundary = false;
    }
}

RecordedStep::~RecordedStep() = default;

const PlanOp& RecordedStep::OpOf(const Issue& issue) const {
  const Entry& entry = schedule_[static_cast<size_t>(issue.entry)];
  return plan_.body(entry).ops[static_cast<size_t>(issue.index)];
}

void RecordedStep::IssueAll(const Section& section, CaptureObserver* observer) {
  executor_.Fork();
  if (observer != nullptr) observer->BeginGraph();
  const std::vector<Issue>& issues = section.issues;
  for (size_t i = 0; i < issues.size(); ++i) {
    const Issue& issue = issues[i];
    Stream& stream = executor_.stream(issue.on);
    for (const size_t event : issue.waits) stream.Wait(executor_.EventAt(event));
    if (observer != nullptr) observer->Before(OpOf(issue), stream, !issue.waits.empty());
    const size_t together = observer == nullptr ? IssueTogether(issues, i) : 0;
    if (together == 0)
      executor_.RunMarked(issue.op, issue.stream, issue.on, issue.mark);
    else
      i += together - 1;
    if (issues[i].record >= 0)
      stream.Record(executor_.EventAt(static_cast<size_t>(issues[i].record)));
    if (observer != nullptr) observer->After(OpOf(issue), stream);
  }
  executor_.Join();
}

// The linears of one row from `first` on between which nothing waits or is waited for.
std::vector<const RowLinearOp<TensorView>*> RecordedStep::RowsFrom(const std::vector<Issue>& issues,
                                                                   size_t first) const {
  std::vector<const RowLinearOp<TensorView>*> rows;
  for (size_t i = first; i < issues.size(); ++i) {
    const Issue& issue = issues[i];
    const auto* row = std::get_if<RowLinearOp<TensorView>>(&issue.op);
    if (row == nullptr || issue.on != issues[first].on || executor_.IsMarked(issue.mark) ||
        (i > first && !issue.waits.empty()))
      break;
    rows.push_back(row);
    if (issue.record >= 0) break;
  }
  return rows;
}

// Of those from `first` on, whose waits are issued: how many were issued at once, 0 for none.
size_t RecordedStep::IssueTogether(const std::vector<Issue>& issues, size_t first) {
  if (collectives_) return 0;
  const std::vector<const RowLinearOp<TensorView>*> rows = RowsFrom(issues, first);
  if (rows.size() < 2) return 0;
  size_t next = first + rows.size();
  while (next < issues.size() && !std::holds_alternative<RowLinearOp<TensorView>>(issues[next].op))
    ++next;
  const ExecutorContext& context = executor_.context();
  const RangeScope range(context.ranges, together_range_);
  const size_t taken = context.kernels->row_linears(rows, RowsFrom(issues, next),
                                                    executor_.stream(issues[first].on));
  if (taken > 0 && context.marks != nullptr)
    context.marks->At(issues[first + taken - 1].mark.index, false);
  return taken;
}

void RecordedStep::Capture(Section& section) {
  Device& device = *executor_.context_.device;
  Stream& compute = executor_.stream(StreamId::kCompute);
  const KernelCounters kernels = executor_.kernel_counters_;
  const CommCounters comm = executor_.comm_counters();
  const int64_t marks = executor_.enqueued_marks_;
  const RangeScope range(executor_.context_.ranges, capture_range_);
  device.BeginCapture(compute);
  try {
    IssueAll(section, observer_);
  } catch (...) {
    // The streams leave the capture; what went wrong is what is said.
    try {
      device.EndCapture(compute);
    } catch (const Error&) {
    }
    throw;
  }
  section.graph = device.EndCapture(compute);
  section.kernels = executor_.kernel_counters_ - kernels;
  section.comm = executor_.comm_counters() - comm;
  mark_nodes_ += executor_.enqueued_marks_ - marks;
}

// Places in members() of the communicators whose ranks run this schedule when this one does: the
// world where one of its collectives joins all ranks. None where it has no collective: ranks that
// generate on their own run a plan as often as their requests want.
std::vector<size_t> RecordedStep::Joined() const {
  const std::vector<CommSet::Member>& members = executor_.context_.comms->members();
  std::set<size_t> joined;
  for (const Section& section : sections_)
    for (const Issue& issue : section.issues)
      if (const std::optional<IssuedCollective> of = CollectiveOf(issue.op))
        joined.insert(executor_.context_.comms->IndexOf({of->axes, issue.stream}));
  for (const size_t member : joined)
    if (members[member].ranks.size() == members.front().ranks.size()) return {0};
  if (members.front().ranks.size() == 1) return {0};
  return {joined.begin(), joined.end()};
}

// Runs `step` on the ranks that run this schedule together, or where one fails, ends all of them
// with its words.
void RecordedStep::RequireAll(const std::string& what, const std::function<void()>& step) {
  const std::vector<size_t> joined = Joined();
  if (joined.empty()) return step();
  // A wait for other ranks, which takes CPU time, is no progress of an op.
  ProgressMarks* const marks = executor_.context_.marks;
  const auto own = [&] {
    const EndOfIssue end{marks};
    step();
  };
  std::optional<Error> failure;
  for (const size_t member : joined) {
    const CommSet::Member& of = executor_.context_.comms->members()[member];
    const std::optional<RankFailure> failed =
        member == joined.front() ? FirstFailure(*of.comm, own) : FirstFailure(*of.comm, failure);
    if (!failed || failure) continue;
    failure = Error(failed->error.code(),
                    fmt::format("rank {} {} the recorded {} step: {}. No rank goes on "
                                "(execution.graph=off runs without graphs)",
                                of.ranks[static_cast<size_t>(failed->rank)], what, plan_.name,
                                failed->error.what()));
  }
  if (failure) throw *failure;
  if (marks != nullptr) marks->At(0, false);
}

void RecordedStep::CaptureTogether(const Binding& now) {
  // What is still on the device was issued, not captured: it is done before anybody captures, on
  // all of these ranks, so that no rank waits in a collective for one that builds its graph.
  RequireAll("is not ready to capture", [&] {
    executor_.Sync();
    CheckAddresses(now);
  });
  RequireAll("cannot capture", [&] {
    if (!executor_.context_.device->captures()) return;
    for (Section& section : sections_) Capture(section);
  });
}

void RecordedStep::Launch(const Section& section, bool counted) {
  if (!section.graph) {
    IssueAll(section, nullptr);
    ++launches_;
    return;
  }
  if (!counted) {
    executor_.kernel_counters_ += section.kernels;
    executor_.replayed_ += section.comm;
    if (executor_.order_)
      for (const Issue& issue : section.issues)
        if (issue.mark.collective) executor_.Log(issue.op, issue.stream, issue.mark);
  }
  const RangeScope range(executor_.context_.ranges, launch_range_);
  section.graph->Launch(executor_.stream(StreamId::kCompute));
  ++launches_;
}

void RecordedStep::Replay(const Binding& now) {
  MR_CHECK(now.plan == bound_.plan && now.arena == bound_.arena,
           "the recorded {} step was bound to an arena at {}, which is now at {}", plan_.name,
           static_cast<const void*>(bound_.arena), static_cast<const void*>(now.arena));
  const bool captures = executor_.context_.device->captures();
  if (!issued_) {
    for (const Section& section : sections_) IssueAll(section, nullptr);
    launches_ += captures ? 0 : static_cast<int64_t>(sections_.size());
    issued_ = true;
    return;
  }
  // A capture counts what it issues, once: for the launch that follows.
  const bool counted = !captured_ && captures;
  if (!captured_) CaptureTogether(now);
  captured_ = true;
  for (const Section& section : sections_) Launch(section, counted);
}

void RecordedStep::CheckAddresses(const Binding& binding) const {
  for (const Section& section : sections_)
    for (const Issue& issue : section.issues) {
      const Entry& entry = schedule_[static_cast<size_t>(issue.entry)];
      const Body& body = binding.plan->body(entry);
      const PlanOp& op = body.ops[static_cast<size_t>(issue.index)];
      const std::string moved = MovedOperand(
          issue.op, BindOp(binding, op.op, body.begin + issue.index, entry.microbatch));
      MR_CHECK(moved.empty(), "op {} of body {}: {}", op.label, body.name, moved);
    }
}

std::string RecordedStep::OffsetsHash() const {
  Hasher128 hash;
  for (const Section& section : sections_)
    for (const Issue& issue : section.issues) {
      std::vector<int64_t> places;  // of the operands that are present, in order
      ForEachUse(OpOf(issue).op, [&](const View& view, Access, std::string_view) {
        const int64_t place = view.FirstOn(bound_.mesh, bound_.rank) - view.offset;
        places.push_back(place * Bytes(view.layout.dtype));
      });
      std::vector<int64_t> offsets;  // of all; -1: absent
      auto place = places.begin();
      for (const BoundOperand& operand : OperandsOf(issue.op))
        offsets.push_back(operand.data != nullptr ? operand.data - bound_.arena - *place++ : -1);
      hash.Update(offsets.data(), static_cast<int64_t>(offsets.size() * sizeof offsets[0]));
    }
  return hash.Hex();
}

int64_t RecordedStep::nodes() const {
  int64_t nodes = 0;
  for (const Section& section : sections_) nodes += section.graph ? section.graph->nodes() : 0;
  return nodes;
}

}  // namespace millrace
