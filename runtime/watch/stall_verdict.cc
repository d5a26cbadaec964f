#include "runtime/watch/stall_verdict.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "runtime/base/rank_list.h"
#include "runtime/exec/agreement/plan_agreement.h"

namespace millrace {
namespace {

const StepPlan* PlanOf(const PlanNames& names, int32_t plan) {
  return static_cast<size_t>(plan) < names.plans.size() ? names.plans[static_cast<size_t>(plan)]
                                                        : nullptr;
}

std::string WhichRun(const PlanNames& names, const RunInfo& run) {
  const StepPlan* plan = PlanOf(names, run.plan);
  const char* before = run.prologue ? "before " : "";
  if (plan == nullptr || plan->updates()) return fmt::format("{}step {}", before, run.step + 1);
  return fmt::format("{}the {} plan", before, plan->name);
}

struct Place {
  const Body* body = nullptr;
  const PlanOp* op = nullptr;
  int32_t microbatch = 0;
};

Place PlaceOf(const PlanNames& names, const RunInfo& run, int64_t index) {
  const StepPlan* plan = PlanOf(names, run.plan);
  if (plan == nullptr) return {};
  for (const Entry& entry : run.prologue ? plan->prologue : plan->schedule) {
    const Body& body = plan->body(entry);
    const auto ops = static_cast<int64_t>(body.ops.size());
    if (index < ops) return {&body, &body.ops[static_cast<size_t>(index)], entry.microbatch};
    index -= ops;
  }
  return {};
}

enum class Reach { kAt, kFrom };

std::string OpText(const PlanNames& names, const RunInfo& run, int64_t index, Reach reach) {
  const Place place = PlaceOf(names, run, index);
  if (place.op == nullptr) return fmt::format("op {} of {}", index, WhichRun(names, run));
  const PlanOp& op = *place.op;
  const auto unit = static_cast<size_t>(op.unit.value);
  const std::string whose =
      op.unit && unit < names.units.size() ? "unit " + names.units[unit] : "no unit";
  const std::optional<PlannedCall> call = CallOf(op.op);
  const std::string over = call ? " over " + ToString(call->axes) : "";
  const std::string where = fmt::format("stream {}{}, {}, microbatch {}, {}", Name(op.stream), over,
                                        WhichRun(names, run), place.microbatch, place.body->name);
  if (reach == Reach::kFrom)
    return fmt::format("the computation of {} (from op {} on, {})", whose, op.label, where);
  return fmt::format("{} of {} (op {}, {})", OpName(op.op), whose, op.label, where);
}

// Of the collectives that the device is in, the one that was issued first; else where it computes.
Position DevicePosition(const ProgressReading& reading, const PlanNames& names) {
  Position position{reading.device[kRunBegunWord], -1, false, ""};
  int64_t computes = -1, place = -1;  // behind a collective that was passed: behind who waits in it
  for (int s = 0; s < kStreams; ++s) {
    const uint64_t word = reading.device[kFirstStreamWord + s];
    const auto index = static_cast<int64_t>(word >> 2);
    const auto mark = static_cast<StreamMark>(word & 3);
    if (mark == StreamMark::kInCollective && (!position.waits || index < position.place)) {
      position.waits = true;
      position.place = index;
    }
    const bool passed = mark == StreamMark::kPassedCollective &&
                        s == static_cast<int>(StreamId::kCompute);  // of a chain: recorded_step.h
    if (mark == StreamMark::kComputing || passed) {
      computes = index;
      place = passed ? index + 1 : index;
    }
  }
  if (position.waits) {
    position.text = OpText(names, reading.device_run, position.place, Reach::kAt);
  } else if (computes >= 0) {
    position.place = place;
    position.text = OpText(names, reading.device_run, computes, Reach::kFrom);
  } else {
    position.text = fmt::format("{}, before its first mark", WhichRun(names, reading.device_run));
  }
  return position;
}

// Where a rank was last in work of its own; a device shows marks, not every op.
std::string LastOp(const ProgressReading& reading, const PlanNames& names) {
  if (reading.runs == 0) return "";
  if (!reading.has_device)
    return "; its last op was " + OpText(names, reading.host_run, reading.index, Reach::kAt);
  uint64_t last = 0;
  for (int s = 0; s < kStreams; ++s) last = std::max(last, reading.device[kFirstStreamWord + s]);
  if (last == 0) return "";
  return "; its last mark was " +
         OpText(names, reading.device_run, static_cast<int64_t>(last >> 2), Reach::kAt);
}

std::string Who(const ProgressRecord& record) {
  return fmt::format("rank {} (pid {} on {})", record.rank, record.pid, record.host);
}

std::string WhySilent(const RankView& rank) {
  switch (rank.process) {
    case 'T':
      return "its process is stopped by a signal (SIGSTOP)";
    case 't':
      return "its process is stopped by a debugger";
    case 'D':
      return "its process waits in the kernel, for a disk, a network file system or a driver";
    case 'X':
      return "its process has ended";
    case '?':
      return "nothing comes from its process: it is stopped, or its host hangs or is cut off";
    default:
      return "its process is there, but its watchdog does not run";
  }
}

// Ranks by where they are, those behind first.
struct Group {
  Position position;
  std::vector<int> ranks;
};
std::vector<Group> Grouped(const std::vector<const RankView*>& ranks, const PlanNames& names) {
  std::map<std::tuple<uint64_t, int64_t, std::string>, Group> groups;
  for (const RankView* rank : ranks) {
    Position position = PositionOf(rank->record.reading, names);
    Group& group = groups[{position.run, position.place, position.text}];
    group.position = std::move(position);
    group.ranks.push_back(rank->record.rank);
  }
  std::vector<Group> list;
  for (auto& [key, group] : groups) list.push_back(std::move(group));
  return list;
}

std::string InWords(const Group& group) {
  const bool one = group.ranks.size() == 1;
  return fmt::format("{} {} in {}", RanksText(group.ranks),
                     group.position.waits ? (one ? "waits" : "wait") : (one ? "is" : "are"),
                     group.position.text);
}

// The one rank of a group, with its process.
std::string Named(const Group& group, const std::vector<const RankView*>& ranks) {
  const auto rank = std::find_if(ranks.begin(), ranks.end(), [&](const RankView* view) {
    return view->record.rank == group.ranks.front();
  });
  return fmt::format("{} {} in {}", Who((*rank)->record), group.position.waits ? "waits" : "is",
                     group.position.text);
}

// A job of many ranks that stand in many places: the first few tell.
constexpr size_t kGroupsShown = 4;

std::string Others(const std::vector<Group>& groups, size_t from) {
  std::string text;
  for (size_t g = from; g < std::min(groups.size(), from + kGroupsShown); ++g)
    text += "; " + InWords(groups[g]);
  if (groups.size() > from + kGroupsShown)
    text += fmt::format("; the others in {} more places", groups.size() - from - kGroupsShown);
  return text;
}

}  // namespace

Position PositionOf(const ProgressReading& reading, const PlanNames& names) {
  if (reading.has_device && reading.device[kRunBegunWord] != reading.device[kRunDoneWord])
    return DevicePosition(reading, names);
  if (reading.issuing)
    return {reading.runs, reading.index, reading.in_collective,
            (reading.has_device ? "issuing " : "") +
                OpText(names, reading.host_run, reading.index, Reach::kAt)};
  if (reading.busy())
    return {
        reading.runs, -1, false,
        fmt::format("{}, issued and not begun by the device", WhichRun(names, reading.host_run))};
  std::string text = fmt::format("the phase \"{}\"", Name(reading.phase));
  if (reading.phase == RunPhase::kEvaluating) text += fmt::format(", batch {}", reading.detail + 1);
  if (reading.phase == RunPhase::kGenerating) text += fmt::format(", token {}", reading.detail + 1);
  if (reading.phase == RunPhase::kReadingTokens)
    text += fmt::format(" of step {}", reading.detail + 1);
  if (reading.phase == RunPhase::kTraining || reading.phase == RunPhase::kSaving ||
      reading.phase == RunPhase::kSyncing)
    text += fmt::format(", after step {}", reading.detail);
  text += LastOp(reading, names);
  return {reading.runs + 1, -1, false, text};
}

std::string StallVerdict(const std::vector<RankView>& ranks, const PlanNames& names,
                         int64_t seconds, const BrokenTransport& broken) {
  std::vector<const RankView*> alive;
  std::string text =
      broken.words.empty()
          ? fmt::format("no progress for {} s (execution.watchdog_s): ", seconds)
          : fmt::format("the transport of rank {} is broken: {}; no progress for {} s: ",
                        broken.rank, broken.words, seconds);
  bool silent = false;
  for (const RankView& rank : ranks) {
    if (rank.state == RankView::State::kAlive) alive.push_back(&rank);
    if (rank.state != RankView::State::kSilent) continue;
    text +=
        fmt::format("{}{} does not run: {}; it was last seen in {}", silent ? "; " : "",
                    Who(rank.record), WhySilent(rank), PositionOf(rank.record.reading, names).text);
    silent = true;
  }
  const std::vector<Group> groups = Grouped(alive, names);
  if (silent) return text + Others(groups, 0);
  if (groups.empty()) return text + "no rank shows where it is";
  const Group& first = groups.front();
  if (groups.size() == 1 && ranks.size() > 1)
    return text + fmt::format(
                      "{} {} in {}", first.ranks.size() == 1 ? RanksText(first.ranks) : "all ranks",
                      first.position.waits ? "wait for each other" : "are", first.position.text);
  text += first.ranks.size() > 1 || ranks.size() == 1 ? InWords(first) : Named(first, alive);
  if (first.position.waits && groups.size() > 1) text += ", which others have passed, or left out";
  if (!first.position.waits && groups.size() > 1) text += " and holds the others up";
  return text + Others(groups, 1);
}

}  // namespace millrace
