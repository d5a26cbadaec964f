#include "runtime/exec/checked/shadow.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

#include "runtime/base/error.h"

namespace millrace {
namespace {

AccessTable TableOf(const StepPlan& plan, const Mesh& mesh, int rank) {
  int accumulate = 1;
  for (const Entry& entry : plan.schedule) accumulate = std::max(accumulate, entry.microbatch + 1);
  Violations problems;
  AccessTable table(plan, mesh, accumulate, {rank}, &problems);
  MR_CHECK(problems.empty(), "{}", problems.front().message);
  return table;
}

}  // namespace

Shadow::Shadow(const StepPlan& plan, const Mesh& mesh, int rank, const ArenaView& arena)
    : plan_(plan),
      arena_(arena),
      table_(TableOf(plan, mesh, rank)),
      stays_(plan),
      cells_(table_.cells()) {
  for (size_t b = 0; b < plan_.bodies.size(); ++b) {
    std::vector<int32_t>& first = first_access_.emplace_back();
    int32_t next = 0;
    for (size_t o = 0; o < plan_.bodies[b].ops.size(); ++o) {
      first.push_back(next);
      next += static_cast<int32_t>(table_.of(static_cast<int>(b), static_cast<int>(o)).size());
    }
  }
}

template <class F>
void Shadow::ForEachAccess(int entry, int op, F&& f) const {
  const int body = (*schedule_)[static_cast<size_t>(entry)].body;
  auto next =
      static_cast<size_t>(first_access_[static_cast<size_t>(body)][static_cast<size_t>(op)]);
  for (const CellAccess& access : table_.of(body, op)) {
    const StayId stay = stay_of_[static_cast<size_t>(entry)][next++];
    if (!IsState(plan_.buffer(access.buffer).scope)) f(access, stay);
  }
}

void Shadow::Reset() {
  arena_.Poison(plan_.persistent_bytes, plan_.arena_bytes);
  cells_.Fill(Cell{});
  parts_.Clear();
  stays_ = StayTracker(plan_);
}

void Shadow::Free(CellId cell) {
  const ByteRange range = table_.bytes(cell);
  arena_.Poison(range.begin, range.end);
  cells_[cell] = Cell{};
  parts_.Forget(cell);
}

void Shadow::Set(CellId cell, bool defined) {
  cells_[cell].defined = defined;
  parts_.Forget(cell);
}

void Shadow::Begin(const std::vector<Entry>& schedule) {
  MR_CHECK(&schedule == &plan_.schedule || &schedule == &plan_.prologue,
           "the schedule to be run is not the plan's");
  if (&schedule == &plan_.prologue || !plan_.updates()) Reset();
  schedule_ = &schedule;
  stay_of_.clear();
  outstanding_.clear();
  ops_left_ = 0;
  for (const Entry& entry : schedule) {
    const Body& body = plan_.body(entry);
    stays_.Enter(body);
    std::vector<StayId>& stays = stay_of_.emplace_back();
    ops_left_ += std::ssize(body.ops);
    for (size_t o = 0; o < body.ops.size(); ++o) {
      for (const CellAccess& access : table_.of(entry.body, static_cast<int>(o))) {
        const StayId stay = stays_.StayOf(access);
        stays.push_back(stay);
        buffer_of_stay_.resize(static_cast<size_t>(stays_.next().value));
        buffer_of_stay_[stay] = access.buffer;
        if (IsState(plan_.buffer(access.buffer).scope)) continue;
        for (const CellId c : access.cells) ++outstanding_[Key(c, stay)];
      }
    }
  }
  // The latest stay of a carried buffer may go on; all others end with the schedule.
  outlasts_ = IdVector<StayId, char>(buffer_of_stay_.size());
  IdVector<BufferId, StayId> latest(plan_.buffers.size());
  for (const auto& stays : stay_of_)
    for (const StayId stay : stays) {
      StayId& last = latest[buffer_of_stay_[stay]];
      last = std::max(last, stay);
    }
  for (const BufferId b : latest.ids())
    if (latest[b] && plan_.buffer(b).scope == BufferScope::kCarried && stays_.Continues(b))
      outlasts_[latest[b]] = true;
  // Bytes that came from the schedule before and that this one does not touch.
  for (const CellId c : cells_.ids()) {
    const StayId stay = cells_[c].stay;
    if (stay && !outlasts_[stay] && !outstanding_.contains(Key(c, stay))) Free(c);
  }
}

std::string Shadow::Where(int entry, int op) const {
  const Entry& e = (*schedule_)[static_cast<size_t>(entry)];
  return fmt::format("entry {} microbatch {}, {}", entry, e.microbatch,
                     DescribeAt(plan_, e.body, op));
}

const std::string& Shadow::NameOf(StayId stay) const {
  return plan_.buffer(buffer_of_stay_[stay]).name;
}

void Shadow::Claim(const CellAccess& access, CellId cell, StayId stay, int entry, int op) {
  const ByteRange range = table_.bytes(cell);
  MR_CHECK(access.effect != Effect::kRead,
           "{}: {} reads {}, whose bytes [{}, {}) nothing has written", Where(entry, op),
           access.operand, NameOf(stay), range.begin, range.end);
  const std::byte* bytes = arena_.Look(range.begin, range.end);
  for (int64_t byte = range.begin; byte < range.end; ++byte)
    MR_CHECK(
        bytes[byte - range.begin] == kPoison,
        "{}: byte {} of the arena, about to become {}'s, was written while it belonged to nobody",
        Where(entry, op), byte, NameOf(stay));
  cells_[cell] = {stay, false};
}

void Shadow::Before(int entry, int op) {
  ForEachAccess(entry, op, [&](const CellAccess& access, StayId stay) {
    for (const CellId c : access.cells) {
      Cell& cell = cells_[c];
      if (!cell.stay) Claim(access, c, stay, entry, op);
      MR_CHECK(cell.stay == stay, "{}: {} touches {} at bytes [{}, {}), which still belong to {}",
               Where(entry, op), access.operand, NameOf(stay), table_.bytes(c).begin,
               table_.bytes(c).end, NameOf(cell.stay));
      MR_CHECK(access.effect != Effect::kRead || cell.defined,
               "{}: {} reads {} before bytes [{}, {}) are written", Where(entry, op),
               access.operand, NameOf(stay), table_.bytes(c).begin, table_.bytes(c).end);
    }
  });
}

void Shadow::After(int entry, int op) {
  --ops_left_;
  ForEachAccess(entry, op, [&](const CellAccess& access, StayId stay) {
    for (const CellId c : access.cells) {
      Cell& cell = cells_[c];
      if (access.effect == Effect::kPart)
        cell.defined = cell.defined || parts_.Add(c, table_.bytes(c), table_.ColumnsOf(access));
      else if (access.effect != Effect::kRead)
        Set(c, access.effect == Effect::kDefine);
      if (--outstanding_[Key(c, stay)] > 0 || outlasts_[stay]) continue;
      Free(c);
    }
  });
}

void Shadow::End() { MR_CHECK_EQ(ops_left_, 0, "ops of the schedule that did not run"); }

}  // namespace millrace
