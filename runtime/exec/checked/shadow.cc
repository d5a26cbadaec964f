#include "runtime/exec/checked/shadow.h"

#include <fmt/core.h>

#include <algorithm>

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
      cells_(static_cast<size_t>(table_.cells())) {
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
    const int32_t stay = stay_of_[static_cast<size_t>(entry)][next++];
    if (!IsState(plan_.buffers[static_cast<size_t>(access.buffer)].scope)) f(access, stay);
  }
}

void Shadow::Reset() {
  arena_.Poison(plan_.persistent_bytes, plan_.arena_bytes);
  std::fill(cells_.begin(), cells_.end(), Cell{});
  parts_.Clear();
  stays_ = StayTracker(plan_);
}

void Shadow::Free(int32_t cell) {
  const ByteRange range = table_.bytes(cell);
  arena_.Poison(range.begin, range.end);
  cells_[static_cast<size_t>(cell)] = Cell{};
  parts_.Forget(cell);
}

void Shadow::Set(int32_t cell, bool defined) {
  cells_[static_cast<size_t>(cell)].defined = defined;
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
    stays_.Enter(entry.body);
    std::vector<int32_t>& stays = stay_of_.emplace_back();
    const std::vector<PlanOp>& ops = plan_.bodies[static_cast<size_t>(entry.body)].ops;
    ops_left_ += static_cast<int64_t>(ops.size());
    for (size_t o = 0; o < ops.size(); ++o) {
      for (const CellAccess& access : table_.of(entry.body, static_cast<int>(o))) {
        const int32_t stay = stays_.StayOf(access);
        stays.push_back(stay);
        buffer_of_stay_.resize(static_cast<size_t>(stays_.count()));
        buffer_of_stay_[static_cast<size_t>(stay)] = access.buffer;
        if (IsState(plan_.buffers[static_cast<size_t>(access.buffer)].scope)) continue;
        for (int32_t c = access.begin; c < access.end; ++c) ++outstanding_[Key(c, stay)];
      }
    }
  }
  // The latest stay of a carried buffer may go on; all others end with the schedule.
  outlasts_.assign(static_cast<size_t>(stays_.count()), false);
  std::vector<int32_t> latest(plan_.buffers.size(), -1);
  for (const auto& stays : stay_of_)
    for (const int32_t stay : stays) {
      int32_t& last = latest[static_cast<size_t>(buffer_of_stay_[static_cast<size_t>(stay)])];
      last = std::max(last, stay);
    }
  for (size_t b = 0; b < latest.size(); ++b)
    if (latest[b] >= 0 && plan_.buffers[b].scope == BufferScope::kCarried &&
        stays_.Continues(static_cast<int32_t>(b)))
      outlasts_[static_cast<size_t>(latest[b])] = true;
  // Bytes that came from the schedule before and that this one does not touch.
  for (int32_t c = 0; c < table_.cells(); ++c) {
    const int32_t stay = cells_[static_cast<size_t>(c)].stay;
    if (stay >= 0 && !outlasts_[static_cast<size_t>(stay)] && !outstanding_.contains(Key(c, stay)))
      Free(c);
  }
}

std::string Shadow::Where(int entry, int op) const {
  const Entry& e = (*schedule_)[static_cast<size_t>(entry)];
  return fmt::format("entry {} microbatch {}, {}", entry, e.microbatch,
                     DescribeAt(plan_, e.body, op));
}

const std::string& Shadow::NameOf(int32_t stay) const {
  return plan_.buffers[static_cast<size_t>(buffer_of_stay_[static_cast<size_t>(stay)])].name;
}

void Shadow::Claim(const CellAccess& access, int32_t cell, int32_t stay, int entry, int op) {
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
  cells_[static_cast<size_t>(cell)] = {stay, false};
}

void Shadow::Before(int entry, int op) {
  ForEachAccess(entry, op, [&](const CellAccess& access, int32_t stay) {
    for (int32_t c = access.begin; c < access.end; ++c) {
      Cell& cell = cells_[static_cast<size_t>(c)];
      if (cell.stay < 0) Claim(access, c, stay, entry, op);
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
  ForEachAccess(entry, op, [&](const CellAccess& access, int32_t stay) {
    for (int32_t c = access.begin; c < access.end; ++c) {
      Cell& cell = cells_[static_cast<size_t>(c)];
      if (access.effect == Effect::kPart)
        cell.defined = cell.defined || parts_.Add(c, table_.bytes(c), table_.ColumnsOf(access));
      else if (access.effect != Effect::kRead)
        Set(c, access.effect == Effect::kDefine);
      if (--outstanding_[Key(c, stay)] > 0 || outlasts_[static_cast<size_t>(stay)]) continue;
      Free(c);
    }
  });
}

void Shadow::End() { MR_CHECK_EQ(ops_left_, 0, "ops of the schedule that did not run"); }

}  // namespace millrace
