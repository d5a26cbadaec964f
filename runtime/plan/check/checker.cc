// The dynamic half: the schedule is walked as it runs, with the state of every byte.
// checker_structure.cc proves what needs no walk.
#include "runtime/plan/check/checker.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/plan/check/access_table.h"
#include "runtime/plan/check/checker_answers.h"
#include "runtime/plan/check/checker_corners.h"
#include "runtime/plan/check/checker_overflow.h"
#include "runtime/plan/check/checker_repetition.h"
#include "runtime/plan/check/checker_rows.h"
#include "runtime/plan/check/checker_shards.h"
#include "runtime/plan/check/checker_structure.h"
#include "runtime/plan/check/happens_before.h"
#include "runtime/plan/check/stay_tracker.h"
#include "runtime/plan/check/weight_versions.h"
#include "runtime/plan/schedule/stream_clock.h"

namespace millrace {
namespace {

struct CellState {
  int32_t writer = -1;  // op that wrote last; -1: the host, before everything
  StayId stay;          // of the buffer that was written
  bool defined = false;
  StreamClock readers;  // since then, the latest of each stream
};

struct Instance {
  const char* phase;
  int32_t body, op, microbatch;
};

class Walk {
 public:
  Walk(const StepPlan& plan, const Mesh& mesh, const AccessTable& table, size_t limit,
       Violations* found)
      : plan_(plan),
        mesh_(mesh),
        table_(table),
        limit_(limit),
        found_(found),
        stays_(plan),
        cells_(table.cells()),
        versions_(plan.buffers.size()) {
    DefineFound(plan.prologue_seam);
    std::vector<BufferId> made = plan.prologue_seam.defines;
    Seam rest;
    std::set_difference(plan.seam.reads.begin(), plan.seam.reads.end(), made.begin(), made.end(),
                        std::back_inserter(rest.reads));
    DefineFound(rest);
  }

  void Run(const std::vector<Entry>& schedule, const char* phase) {
    order_.Join();
    const ProvenRepetition repeated = FindRepetition(schedule);
    std::optional<State> before;  // at the end of the period before the present one
    std::vector<int32_t> first_of_entry(schedule.size());
    for (size_t e = 0; e < schedule.size(); ++e) {
      if (e == repeated.begin) begin_ = {order_.count(), stays_.next(), stays_.entered()};
      if (repeated.EndsPeriod(e)) {
        if (before && IsShifted(*before)) {
          Skip(repeated, e, *before, &first_of_entry);
          e = repeated.end;
          if (e == schedule.size()) return;
        } else {
          before = {order_.count(), stays_, cells_, parts_, versions_};
        }
      }
      const Entry& entry = schedule[e];
      first_of_entry[e] = static_cast<int32_t>(instances_.size());
      const Body& body = plan_.body(entry);
      stays_.Enter(body);
      auto edge = entry.edges.begin();
      for (size_t o = 0; o < body.ops.size(); ++o) {
        const auto op_index = static_cast<int32_t>(o);
        waits_.clear();
        for (; edge != entry.edges.end() && edge->to_op == op_index; ++edge)
          waits_.push_back(first_of_entry[static_cast<size_t>(edge->from_entry)] + edge->from_op);
        const int32_t self = order_.Append(body.ops[o].stream, waits_);
        instances_.push_back({phase, entry.body, op_index, entry.microbatch});
        Step(self, body.ops[o].op);
        if (found_->size() >= limit_) return;
      }
    }
  }

  // What the schedule that has been walked leaves: the outputs for the host, and the states that it
  // says it defines.
  void CheckOutputs() {
    for (const PlanOutput& output : plan_.outputs) {
      const StayId stay = stays_.Latest(output.view.buffer);
      bool holds = stays_.Continues(output.view.buffer);
      for (size_t k = 0; holds && k < table_.ranks().size(); ++k)
        holds = Holds(k, BytesOf(output.view, table_.ranks()[k]), stay);
      if (!holds)
        Report(
            ViolationKind::kUndefined,
            fmt::format("the {} plan's output {}: {} does not survive the schedule, but the host "
                        "reads it then",
                        plan_.name, output.name, NameOf(output.view.buffer)));
    }
  }
  void CheckDefines(const Seam& seam, const char* part) {
    for (const BufferId id : seam.defines)
      if (IsState(plan_.buffer(id).scope) && !HoldsOnAll(id))
        Report(ViolationKind::kUndefined,
               fmt::format("the {} of the {} plan says that it defines the state {}, but leaves it "
                           "in part unwritten",
                           part, plan_.name, plan_.buffer(id).name));
  }

 private:
  // What is known between two entries, besides the clocks in `order_`.
  struct State {
    int32_t ops;  // walked until then
    StayTracker stays;
    IdVector<CellId, CellState> cells;
    PartCover parts;
    WeightVersions versions;
  };

  // Is the state what `before` was, with every op, stay and entry since the repetition began moved
  // on by one period? What holds for a period then holds for the next: all that Step compares is
  // which op comes first, whether two stays are one, and which weights are the latest.
  bool IsShifted(const State& before) const {
    const int32_t ops = order_.count() - before.ops,
                  stays = stays_.next().value - before.stays.next().value;
    const auto op = [&](int32_t was, int32_t is) {
      // An op of an earlier period that is still remembered: its clock was not compared.
      if (is >= begin_.op && is < before.ops) return false;
      return (was < begin_.op ? was : was + ops) == is;
    };
    const auto cell = [&](const CellState& was, const CellState& is) {
      return op(was.writer, is.writer) && was.defined == is.defined &&
             (was.stay < begin_.stay ? was.stay : StayId{was.stay.value + stays}) == is.stay &&
             std::equal(std::begin(was.readers), std::end(was.readers), std::begin(is.readers), op);
    };
    return parts_ == before.parts && versions_ == before.versions &&
           order_.Repeats(begin_.op, before.ops) &&
           stays_.IsShifted(before.stays, begin_.stay, begin_.entry) &&
           std::equal(cells_.begin(), cells_.end(), before.cells.begin(),
                      [&](const CellState& is, const CellState& was) { return cell(was, is); });
  }

  // Entries [next, repeated.end) are not walked. The period walked last, which began at
  // `before.ops`, stands for the repetition's last from here on.
  void Skip(const ProvenRepetition& repeated, size_t next, const State& before,
            std::vector<int32_t>* first_of_entry) {
    for (size_t k = 1; k <= repeated.period; ++k)
      (*first_of_entry)[repeated.end - k] = (*first_of_entry)[next - k];
    const auto periods = static_cast<int32_t>((repeated.end - next) / repeated.period);
    for (size_t i = static_cast<size_t>(before.ops); i < instances_.size(); ++i)
      instances_[i].microbatch += periods;
  }

  void Report(ViolationKind kind, std::string message) {
    if (found_->size() < limit_) found_->push_back({kind, std::move(message)});
  }

  std::string At(int32_t instance) const {
    if (instance < 0) return "the host";
    const Instance& i = instances_[static_cast<size_t>(instance)];
    return fmt::format("[{} microbatch {}] {}", i.phase, i.microbatch,
                       DescribeAt(plan_, i.body, i.op));
  }
  std::string Bytes(CellId cell) const {
    const auto [rank, range] = table_.PlaceOf(cell);
    return fmt::format("bytes [{}, {}) of the arena, rank {}", range.begin, range.end, rank);
  }
  const std::string& NameOf(BufferId buffer) const { return plan_.buffer(buffer).name; }

  // What the plan says it finds: whoever runs it has to see that it is there (seams.h).
  void DefineFound(const Seam& seam) {
    for (const BufferId id : seam.reads) {
      if (!IsState(plan_.buffer(id).scope)) continue;
      versions_.Found(id);
      for (size_t k = 0; k < table_.ranks().size(); ++k)
        for (const ByteRange& range : table_.On(k, BytesOf(id)))
          DefineUnwritten(range, stays_.Latest(id));
    }
  }

  ByteRange BytesOf(BufferId state) const {
    const PlanBuffer& buffer = plan_.buffer(state);
    const int64_t begin = buffer.offsets.empty() ? 0 : buffer.offsets.front();
    return {begin, begin + buffer.bytes};
  }
  ByteRange BytesOf(const View& output, int rank) const {
    const PlanBuffer& buffer = plan_.buffer(output.buffer);
    const int64_t begin = buffer.offsets.empty()
                              ? 0
                              : buffer.offsets.back() + millrace::Bytes(output.layout.dtype) *
                                                            output.FirstOn(mesh_, rank);
    return {begin, begin + output.layout.span_bytes()};
  }
  void DefineUnwritten(const ByteRange& range, StayId stay) {
    for (const CellId c : table_.CellsIn(range))
      if (cells_[c].writer < 0) cells_[c] = {-1, stay, true, {}};
  }
  // Is each of these bytes defined on the k-th rank, in this stay?
  bool Holds(size_t k, const ByteRange& bytes, StayId stay) const {
    for (const ByteRange& range : table_.On(k, bytes)) {
      int64_t at = range.begin;
      for (const CellId c : table_.CellsIn(range)) {
        const CellState& cell = cells_[c];
        if (!cell.defined || cell.stay != stay || table_.bytes(c).begin != at) return false;
        at = table_.bytes(c).end;
      }
      if (at != range.end) return false;
    }
    return true;
  }
  bool HoldsOnAll(BufferId state) const {
    for (size_t k = 0; k < table_.ranks().size(); ++k)
      if (!Holds(k, BytesOf(state), stays_.Latest(state))) return false;
    return true;
  }

  void Step(int32_t self, const KernelOp& op) {
    const Instance& at = instances_.back();
    const StreamId stream = order_.stream(self);
    for (const CellAccess& access : table_.of(at.body, at.op)) {
      const StayId stay = stays_.StayOf(access);
      if (access.effect == Effect::kRead)
        Read(self, stream, access, stay);
      else
        Write(self, access, stay);
      if (access.effect == Effect::kRead || access.effect == Effect::kPart)
        RequireLatest(self, access);
      if (found_->size() >= limit_) return;
    }
    versions_.Ran(op);
  }

  void Read(int32_t self, StreamId stream, const CellAccess& access, StayId stay) {
    for (const CellId c : access.cells) {
      CellState& cell = cells_[c];
      if (!cell.defined || cell.stay != stay) {
        if (IsState(plan_.buffer(access.buffer).scope))
          Report(
              ViolationKind::kUndefined,
              fmt::format("{}: {} reads the state {}, which the {} plan neither finds, by its "
                          "seams, nor has written ({})",
                          At(self), access.operand, NameOf(access.buffer), plan_.name, Bytes(c)));
        else
          Report(ViolationKind::kUndefined,
                 fmt::format("{}: {} reads {} where nothing has written it since it became live; "
                             "last written by {} ({})",
                             At(self), access.operand, NameOf(access.buffer), At(cell.writer),
                             Bytes(c)));
        return;
      }
      if (cell.writer >= 0 && cell.writer != self && !order_(cell.writer, self)) {
        Race(self, access, cell.writer, "writes", c);
        return;
      }
      if (cell.writer >= 0 && IsOfAnotherMicrobatch(access.buffer, cell.writer)) {
        Report(ViolationKind::kMicrobatch,
               fmt::format("{}: {} reads {}, which {} wrote for another microbatch", At(self),
                           access.operand, NameOf(access.buffer), At(cell.writer)));
        return;
      }
      cell.readers[stream] = self;
    }
  }

  void RequireLatest(int32_t self, const CellAccess& access) {
    if (const BufferId weights = versions_.StaleOf(access.buffer))
      Report(ViolationKind::kStale,
             fmt::format("{}: {} reads {}, made from {} before its latest update", At(self),
                         access.operand, NameOf(access.buffer), NameOf(weights)));
  }

  bool IsOfAnotherMicrobatch(BufferId buffer, int32_t writer) const {
    return plan_.buffer(buffer).scope == BufferScope::kMicrobatch &&
           instances_[static_cast<size_t>(writer)].microbatch != instances_.back().microbatch;
  }

  void Write(int32_t self, const CellAccess& access, StayId stay) {
    for (const CellId c : access.cells) {
      CellState& cell = cells_[c];
      if (cell.writer >= 0 && cell.writer != self && !order_(cell.writer, self)) {
        Race(self, access, cell.writer, "writes", c);
        return;
      }
      for (const int32_t reader : cell.readers) {
        if (reader < 0 || reader == self || order_(reader, self)) continue;
        Race(self, access, reader, "reads", c);
        return;
      }
      cell = CellState{self, stay, DefinesCell(c, access, stay), {}};
    }
  }

  // Is the cell defined once the access has written it?
  bool DefinesCell(CellId c, const CellAccess& access, StayId stay) {
    const CellState& cell = cells_[c];
    const bool part = access.effect == Effect::kPart;
    const bool goes_on = part && cell.stay == stay &&
                         (cell.writer < 0 || !IsOfAnotherMicrobatch(access.buffer, cell.writer));
    if (!goes_on) parts_.Forget(c);
    if (!part) return access.effect == Effect::kDefine;
    return (goes_on && cell.defined) || parts_.Add(c, table_.bytes(c), table_.ColumnsOf(access));
  }

  void Race(int32_t self, const CellAccess& access, int32_t other, const char* does, CellId cell) {
    Report(
        ViolationKind::kRace,
        fmt::format("{}: {} {} {} without waiting for {}, which {} the same bytes ({})", At(self),
                    access.operand, access.effect == Effect::kRead ? "reads" : "writes",
                    NameOf(access.buffer), At(other), does, Bytes(cell)));
  }

  const StepPlan& plan_;
  const Mesh mesh_;
  const AccessTable& table_;
  const size_t limit_;
  Violations* found_;
  StayTracker stays_;
  HappensBefore order_;
  std::vector<Instance> instances_;
  IdVector<CellId, CellState> cells_;
  PartCover parts_;
  WeightVersions versions_;
  std::vector<int32_t> waits_;
  struct {
    int32_t op = 0;
    StayId stay;
    EnteredId entry;
  } begin_;  // the repetition's first of each
};

}  // namespace

Violations FindViolations(const StepPlan& plan, const Mesh& mesh, int accumulate, size_t limit) {
  Violations found;
  FindStructuralViolations(plan, mesh, accumulate, &found);
  if (found.empty()) {
    const AccessTable table(plan, mesh, accumulate, CornersOf(plan, mesh), &found);
    if (found.empty()) {
      Walk walk(plan, mesh, table, limit, &found);
      walk.Run(plan.prologue, "prologue");
      if (found.empty()) walk.CheckDefines(plan.prologue_seam, "prologue");
      walk.Run(plan.schedule, "step 1");
      walk.Run(plan.schedule, "step 2");
      if (found.empty()) walk.CheckDefines(plan.seam, "schedule");
      if (found.empty()) walk.CheckOutputs();
    }
  }
  if (found.empty()) FindShardViolations(plan, mesh, {}, &found);
  if (found.empty()) FindRowViolations(plan, mesh, accumulate, &found);
  if (found.empty()) FindAnswerViolations(plan, mesh, accumulate, &found);
  if (found.empty()) FindOverflowViolations(plan, mesh, &found);
  if (found.size() > limit) found.resize(limit);
  return found;
}

void CheckPlan(const StepPlan& plan, const Mesh& mesh, int accumulate) {
  const Violations found = FindViolations(plan, mesh, accumulate, 3);
  if (found.empty()) return;
  std::string text = fmt::format("the {} plan is not safe to run", plan.name);
  for (const Violation& violation : found) text += "\n  " + violation.message;
  throw Error(ErrorCode::kInternal, text);
}

}  // namespace millrace
