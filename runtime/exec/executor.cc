#include "runtime/exec/executor.h"

#include <array>
#include <cstring>
#include <iterator>

#include "runtime/exec/issue_order.h"

namespace millrace {
namespace {

// A rank alone has no collectives: beside the chain are gradients of weights, which nobody reads
// before the update, and casts of what is used later. On a GPU the chain then comes before the
// process's other work of no priority, too.
StreamRole RoleOf(StreamId stream, bool alone) {
  if (alone) return stream == StreamId::kCompute ? StreamRole::kChain : StreamRole::kCompute;
  return stream == StreamId::kCompute ? StreamRole::kCompute : StreamRole::kCollectives;
}

// Where a call is refused, its marks are not the next one's.
struct NoMarks {
  Communicator& comm;
  ~NoMarks() { comm.MarkNextCall({}, {}); }
};

}  // namespace

Executor::Executor(const ExecutorContext& context) : context_(context) {
  const bool alone = context_.comms == nullptr || context_.comms->world().world_size() == 1;
  for (int s = 0; s < kStreams; ++s)
    streams_[static_cast<size_t>(s)] =
        context_.device->MakeStream(RoleOf(static_cast<StreamId>(s), alone));
  if (context_.ranges != nullptr) ranges_.emplace(*context_.ranges);
  if (context_.marks == nullptr || !context_.device->captures()) return;
  words_ = context_.device->AllocateHost(kDeviceWords * kDeviceWordStride, "progress marks");
  std::memset(words_->data(), 0, static_cast<size_t>(words_->bytes()));
  context_.marks->AttachDevice(words_->data());
}

Executor::~Executor() {
  if (words_) context_.marks->AttachDevice(nullptr);
}

void Executor::EnqueueMark(const Device::Mark& mark, StreamId on) {
  ++enqueued_marks_;
  context_.device->EnqueueMark(mark.word, mark.value, stream(on));
}

// On the compute stream, in one launch, or none where there is nothing.
void Executor::EnqueueTogether(std::span<const Device::Copy> copies,
                               std::span<const Device::Mark> marks) {
  Stream& compute = stream(StreamId::kCompute);
  enqueued_marks_ += std::ssize(marks);
  if (!copies.empty())
    context_.device->EnqueueCopies(copies, marks, compute);
  else if (!marks.empty())
    context_.device->EnqueueMarks(marks, compute);
}

std::byte* Executor::WordAt(int word) const { return words_->data() + word * kDeviceWordStride; }

void Executor::BeginRun(const RunInfo& run, std::span<const Device::Copy> copies) {
  if (order_) order_->BeginRun(run);
  const uint64_t number = context_.marks != nullptr ? context_.marks->BeginRun(run) : 0;
  if (!marks_on_device()) return EnqueueTogether(copies, {});
  // Streams are joined to compute here, so no older mark comes later. The words go back before the
  // number moves on: their pair never does.
  std::array<Device::Mark, kStreams + 1> marks{};
  for (int s = 0; s < kStreams; ++s)
    marks[static_cast<size_t>(s)] = {WordAt(kFirstStreamWord + s), 0};
  marks.back() = {WordAt(kRunBegunWord), number};
  EnqueueTogether(copies, marks);
  number_ = number;
}

void Executor::EndRun(std::span<const Device::Copy> copies) {
  if (marks_on_device())
    EnqueueTogether(copies, std::array{Device::Mark{WordAt(kRunDoneWord), number_}});
  else
    EnqueueTogether(copies, {});
  if (context_.marks != nullptr) context_.marks->EndIssue();
}

void Executor::Log(const BoundOp& op, StreamId id, const OpMark& mark) {
  const std::optional<IssuedCollective> call = CollectiveOf(op);
  order_->Issued(context_.comms->IndexOf({call->axes, id}), call->kind, mark.unit, call->bytes,
                 mark.index);
}

void Executor::RunMarked(const BoundOp& op, StreamId id, StreamId on, const OpMark& mark) {
  const RangeScope range(context_.ranges, mark.range);
  if (order_ && mark.collective) Log(op, id, mark);
  if (context_.marks != nullptr) context_.marks->At(mark.index, mark.collective);
  const auto run = [&] {
    RunOp(op, *context_.kernels, *context_.comms, kernel_counters_, id, stream(on));
  };
  if (!marks_on_device()) return run();
  const auto as = [&](StreamMark what) {
    return Device::Mark{WordAt(kFirstStreamWord + static_cast<int>(on)),
                        StreamWord(mark.index, what)};
  };
  if (mark.collective) {
    const Device::Mark begun = as(StreamMark::kInCollective),
                       ended = as(StreamMark::kPassedCollective);
    Communicator& comm = context_.comms->Of({CollectiveOf(op)->axes, id});
    const bool marks_itself = comm.MarkNextCall(begun, ended);
    const NoMarks behind{comm};
    if (!marks_itself) EnqueueMark(begun, on);
    run();
    if (!marks_itself) EnqueueMark(ended, on);
    return;
  }
  if (IsMarked(mark)) EnqueueMark(as(StreamMark::kComputing), on);
  run();
}

bool Executor::IsMarked(const OpMark& mark) const {
  return marks_on_device() && mark.boundary && context_.comms->world().world_size() > 1;
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
  const Body& body = binding.plan->body(entry);
  const PlanOp& op = body.ops[static_cast<size_t>(op_index)];
  const BoundOp bound = BindOp(binding, op.op, body.begin + op_index, entry.microbatch);
  OpMark mark = OpMarker(index).Next(op);
  mark.range = RangeOf(op);
  RunMarked(bound, op.stream, op.stream, mark);
}

void Executor::Run(const Binding& binding, const std::vector<Entry>& schedule,
                   OpObserver* observer) {
  const EventMap events = NumberEvents(schedule);
  if (observer != nullptr) observer->BeginRun(*binding.plan);
  Fork();
  int64_t begun = 0;
  for (size_t e = 0; e < schedule.size(); ++e) {
    const Entry& entry = schedule[e];
    const Body& body = binding.plan->body(entry);
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
        RunMarked(bound, op.stream, op.stream, mark);
      } else {
        observer->Issue(op,
                        [this, bound, id = op.stream, mark] { RunMarked(bound, id, id, mark); });
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

}  // namespace millrace
