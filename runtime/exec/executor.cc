#include "runtime/exec/executor.h"

#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>
#include <variant>

#include "comm/agree.h"
#include "runtime/base/error.h"
#include "runtime/data/hash.h"

namespace millrace {
namespace {

// Numbers the ops that some edge waits for. Key: (entry, op).
using EventMap = std::map<std::pair<int32_t, int32_t>, size_t>;

EventMap NumberEvents(const std::vector<Entry>& schedule) {
  EventMap events;
  for (const Entry& entry : schedule)
    for (const Edge& edge : entry.edges)
      events.try_emplace({edge.from_entry, edge.from_op}, events.size());
  return events;
}

// Of the ops of one body, in order.
class OpMarker {
 public:
  explicit OpMarker(int64_t first_index) : index_(first_index) {}

  OpMark Next(const PlanOp& op) {
    OpMark mark{index_++, op.unit.value, IsCollective(op.op), false};
    if (op.stream != StreamId::kCompute) return mark;
    mark.boundary = first_ || unit_ != op.unit;
    first_ = false;
    unit_ = op.unit;
    return mark;
  }

 private:
  int64_t index_;
  bool first_ = true;
  UnitId unit_;
};

// What a collective's order is known by, on its communicator; the step comes with the run.
struct Collective {
  OrderLog::Kind kind = OrderLog::Kind::kAllGather;
  AxisSet axes;
  int64_t bytes = 0;
};

std::optional<Collective> CollectiveOf(const BoundOp& op) {
  if (const auto* gather = std::get_if<AllGatherOp<TensorView>>(&op))
    return Collective{OrderLog::Kind::kAllGather, gather->axes, gather->full.bytes()};
  if (const auto* reduce = std::get_if<ReduceScatterOp<TensorView>>(&op))
    return Collective{OrderLog::Kind::kReduceScatter, reduce->axes, reduce->full.bytes()};
  if (const auto* reduce = std::get_if<AllReduceOp<TensorView>>(&op))
    return Collective{OrderLog::Kind::kAllReduce, reduce->axes, reduce->buffer.bytes()};
  if (const auto* exchange = std::get_if<AllToAllOp<TensorView>>(&op))
    return Collective{OrderLog::Kind::kAllToAll, exchange->axes, exchange->sent.bytes()};
  return std::nullopt;
}

}  // namespace

Executor::Executor(const ExecutorContext& context) : context_(context) {
  for (int s = 0; s < kStreams; ++s)
    streams_[static_cast<size_t>(s)] = context_.device->MakeStream(
        static_cast<StreamId>(s) == StreamId::kCompute ? StreamRole::kCompute
                                                       : StreamRole::kCollectives);
  if (context_.ranges != nullptr) ranges_.emplace(*context_.ranges);
  if (context_.marks == nullptr || !context_.device->captures()) return;
  words_ = context_.device->AllocateHost(kDeviceWords * kDeviceWordStride, "progress marks");
  std::memset(words_->data(), 0, static_cast<size_t>(words_->bytes()));
  context_.marks->AttachDevice(words_->data());
}

Executor::~Executor() {
  if (words_) context_.marks->AttachDevice(nullptr);
}

void Executor::EnqueueMark(int word, uint64_t value, StreamId id) {
  ++enqueued_marks_;
  context_.device->EnqueueMark(WordAt(word), value, stream(id));
}

std::byte* Executor::WordAt(int word) const { return words_->data() + word * kDeviceWordStride; }

void Executor::BeginRun(const RunInfo& run) {
  if (order_) order_->BeginRun(run);
  if (context_.marks == nullptr) return;
  const uint64_t number = context_.marks->BeginRun(run);
  if (!marks_on_device()) return;
  // Streams are joined to compute here, so no older mark comes later. The words go back before the
  // number moves on: their pair never does.
  std::array<Device::Mark, kStreams + 1> marks{};
  for (int s = 0; s < kStreams; ++s)
    marks[static_cast<size_t>(s)] = {WordAt(kFirstStreamWord + s), 0};
  marks.back() = {WordAt(kRunBegunWord), number};
  enqueued_marks_ += kStreams + 1;
  context_.device->EnqueueMarks(marks, stream(StreamId::kCompute));
  number_ = number;
}

void Executor::EndRun() {
  if (context_.marks == nullptr) return;
  if (marks_on_device()) EnqueueMark(kRunDoneWord, number_, StreamId::kCompute);
  context_.marks->EndIssue();
}

void Executor::Log(const BoundOp& op, StreamId id, const OpMark& mark) {
  const std::optional<Collective> call = CollectiveOf(op);
  order_->Issued(context_.comms->IndexOf({call->axes, id}), call->kind, mark.unit, call->bytes,
                 mark.index);
}

void Executor::RunMarked(const BoundOp& op, StreamId id, const OpMark& mark) {
  const RangeScope range(context_.ranges, mark.range);
  if (order_ && mark.collective) Log(op, id, mark);
  if (context_.marks != nullptr) context_.marks->At(mark.index, mark.collective);
  const bool on_device = marks_on_device();
  const int word = kFirstStreamWord + static_cast<int>(id);
  if (on_device && mark.collective)
    EnqueueMark(word, StreamWord(mark.index, StreamMark::kInCollective), id);
  else if (on_device && mark.boundary && context_.comms->world().world_size() > 1)
    EnqueueMark(word, StreamWord(mark.index, StreamMark::kComputing), id);
  RunOp(op, *context_.kernels, *context_.comms, kernel_counters_, id, stream(id));
  if (on_device && mark.collective)
    EnqueueMark(word, StreamWord(mark.index, StreamMark::kPassedCollective), id);
}

Event& Executor::EventAt(size_t index) {
  while (events_.size() <= index) events_.push_back(context_.device->MakeEvent());
  return *events_[index];
}

// Event 0 belongs to forks and joins; the edges' events follow.
void Executor::Fork() {
  Event& event = EventAt(0);
  Stream& compute = stream(StreamId::kCompute);
  compute.Record(event);
  for (const std::unique_ptr<Stream>& other : streams_)
    if (other.get() != &compute) other->Wait(event);
}

void Executor::Join() {
  Stream& compute = stream(StreamId::kCompute);
  for (const std::unique_ptr<Stream>& other : streams_) {
    if (other.get() == &compute) continue;
    Event& event = EventAt(0);
    other->Record(event);
    compute.Wait(event);
  }
}

CommCounters Executor::comm_counters() const {
  CommCounters all = context_.comms->Counters();
  return all += replayed_;
}

void Executor::Sync() {
  for (const auto& stream : streams_) stream->Sync();
}

void Executor::RunOne(const Binding& binding, const Entry& entry, int op_index, int64_t index) {
  const Body& body = binding.plan->bodies[static_cast<size_t>(entry.body)];
  const PlanOp& op = body.ops[static_cast<size_t>(op_index)];
  const BoundOp bound = BindOp(binding, op.op, body.begin + op_index, entry.microbatch);
  OpMark mark = OpMarker(index).Next(op);
  mark.range = RangeOf(op);
  RunMarked(bound, op.stream, mark);
}

void Executor::Run(const Binding& binding, const std::vector<Entry>& schedule,
                   OpObserver* observer) {
  const EventMap events = NumberEvents(schedule);
  if (observer != nullptr) observer->BeginRun(*binding.plan);
  Fork();
  int64_t begun = 0;
  for (size_t e = 0; e < schedule.size(); ++e) {
    const Entry& entry = schedule[e];
    const Body& body = binding.plan->bodies[static_cast<size_t>(entry.body)];
    OpMarker marker(begun);
    begun += static_cast<int64_t>(body.ops.size());
    auto edge = entry.edges.begin();
    for (size_t o = 0; o < body.ops.size(); ++o) {
      const PlanOp& op = body.ops[o];
      const auto index = static_cast<int32_t>(o);
      for (; edge != entry.edges.end() && edge->to_op == index; ++edge)
        stream(op.stream).Wait(EventAt(1 + events.at({edge->from_entry, edge->from_op})));
      if (observer != nullptr) observer->Before(op, body.begin + index, entry.microbatch);
      OpMark mark = marker.Next(op);
      mark.range = RangeOf(op);
      const BoundOp bound = BindOp(binding, op.op, body.begin + index, entry.microbatch);
      if (observer == nullptr) {
        RunMarked(bound, op.stream, mark);
      } else {
        observer->Issue(op, [this, bound, id = op.stream, mark] { RunMarked(bound, id, mark); });
        if (observer->looks_at_memory()) Sync();
        observer->After(op, body.begin + index, entry.microbatch);
      }
      const auto recorded = events.find({static_cast<int32_t>(e), index});
      if (recorded != events.end()) stream(op.stream).Record(EventAt(1 + recorded->second));
    }
  }
  Join();
  if (observer != nullptr) observer->EndRun();
}

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
  }
  const EventMap events = NumberEvents(schedule);
  int64_t begun = 0;
  for (size_t e = 0; e < schedule.size(); ++e) {
    const Entry& entry = schedule[e];
    const Body& body = binding.plan->bodies[static_cast<size_t>(entry.body)];
    OpMarker marker(begun);
    begun += static_cast<int64_t>(body.ops.size());
    if (e == 0 || mode == GraphMode::kMicrobatch) sections_.emplace_back();
    std::vector<Issue>& issues = sections_.back().issues;
    const size_t first_waiting = issues.size();
    for (size_t o = 0; o < body.ops.size(); ++o) {
      const PlanOp& op = body.ops[o];
      Issue issue;
      issue.op = BindOp(binding, op.op, body.begin + static_cast<int64_t>(o), entry.microbatch);
      issue.stream = op.stream;
      issue.mark = marker.Next(op);
      issue.mark.range = executor_.RangeOf(op);
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
}

RecordedStep::~RecordedStep() = default;

const PlanOp& RecordedStep::OpOf(const Issue& issue) const {
  const Entry& entry = schedule_[static_cast<size_t>(issue.entry)];
  return plan_.bodies[static_cast<size_t>(entry.body)].ops[static_cast<size_t>(issue.index)];
}

void RecordedStep::IssueAll(const Section& section, CaptureObserver* observer) {
  executor_.Fork();
  if (observer != nullptr) observer->BeginGraph();
  for (const Issue& issue : section.issues) {
    Stream& stream = executor_.stream(issue.stream);
    for (const size_t event : issue.waits) stream.Wait(executor_.EventAt(event));
    if (observer != nullptr) observer->Before(OpOf(issue), stream, !issue.waits.empty());
    executor_.RunMarked(issue.op, issue.stream, issue.mark);
    if (issue.record >= 0) stream.Record(executor_.EventAt(static_cast<size_t>(issue.record)));
    if (observer != nullptr) observer->After(OpOf(issue), stream);
  }
  executor_.Join();
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
      if (const std::optional<Collective> of = CollectiveOf(issue.op))
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
  std::optional<Error> failure;
  for (const size_t member : joined) {
    const CommSet::Member& of = executor_.context_.comms->members()[member];
    const std::optional<RankFailure> failed =
        member == joined.front() ? FirstFailure(*of.comm, step) : FirstFailure(*of.comm, failure);
    if (!failed || failure) continue;
    failure = Error(failed->error.code(),
                    fmt::format("rank {} {} the recorded {} step: {}. No rank goes on "
                                "(execution.graph=off runs without graphs)",
                                of.ranks[static_cast<size_t>(failed->rank)], what, plan_.name,
                                failed->error.what()));
  }
  if (failure) throw *failure;
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
      const Body& body = binding.plan->bodies[static_cast<size_t>(entry.body)];
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
      std::vector<int64_t> offsets;  // of the operands, in order; -1: absent
      std::visit(
          [&]<template <class> class Op>(const Op<TensorView>& op) {
            Op<TensorView>::Visit(op, [&](const TensorView& view, Access, std::string_view) {
              offsets.push_back(view.data != nullptr ? view.data - bound_.arena : -1);
            });
          },
          issue.op);
      auto offset = offsets.begin();
      std::visit(
          [&]<template <class> class Op>(const Op<View>& op) {
            Op<View>::Visit(op, [&](const View& view, Access, std::string_view) {
              const int64_t place = view.FirstOn(bound_.mesh, bound_.rank) - view.offset;
              if (view) *offset -= place * Bytes(view.layout.dtype);
              ++offset;
            });
          },
          OpOf(issue).op);
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
