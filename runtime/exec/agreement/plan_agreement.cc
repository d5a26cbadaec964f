#include "runtime/exec/agreement/plan_agreement.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <variant>

#include "runtime/base/error.h"
#include "runtime/data/hash.h"

namespace millrace {
namespace {

// The calls that a rank will issue on one communicator, in order: a line each.
struct CallList {
  const CommSet::Member* member = nullptr;
  std::string lines;
};

std::string UnitName(const ShardLayout& layout, UnitId unit) {
  return unit ? layout.unit(unit).name : "none";
}

void AddCalls(const CommSet& comms, const ShardLayout& layout, const StepPlan& plan,
              const std::vector<Entry>& schedule, const char* part, std::vector<CallList>& lists) {
  for (const Entry& entry : schedule)
    for (const PlanOp& op : plan.body(entry).ops) {
      const std::optional<PlannedCall> call = CallOf(op.op);
      if (!call) continue;
      CallList& list = lists[comms.IndexOf({call->axes, op.stream})];
      // Exchanges of one unit have the same size: they differ in whose rows they move.
      const View& data = *call->data;
      list.lines += fmt::format("{} of unit {} ({} bytes of {}, {} {}): {} from element {} of {}\n",
                                OpName(op.op), UnitName(layout, op.unit), call->bytes(),
                                Name(data.layout.dtype), plan.name, part, op.label, data.offset,
                                plan.buffer(data.buffer).name);
    }
}

// The rank of the group whose list most have; the first of them where several are as common.
size_t Commonest(const std::vector<std::string>& lists) {
  const auto count = [&](const std::string& list) {
    return std::count(lists.begin(), lists.end(), list);
  };
  return static_cast<size_t>(
      std::max_element(lists.begin(), lists.end(),
                       [&](const auto& a, const auto& b) { return count(a) < count(b); }) -
      lists.begin());
}

// Of lists of the ranks of a group that are not all equal.
std::string DescribeDifference(const CallList& mine, const std::vector<std::string>& lists) {
  const size_t right = Commonest(lists);
  const size_t other = static_cast<size_t>(
      std::find_if(lists.begin(), lists.end(), [&](const auto& l) { return l != lists[right]; }) -
      lists.begin());
  std::istringstream a(lists[other]), b(lists[right]);
  std::string call, expected;
  int64_t number = 0;
  do {
    ++number;
    call = expected = "nothing";
    std::getline(a, call);
    std::getline(b, expected);
  } while (call == expected);
  const auto words = [](const std::string& line) { return line.empty() ? "nothing" : line; };
  const std::vector<int>& ranks = mine.member->ranks;
  return fmt::format(
      "rank {} would issue other collectives than rank {} on the communicator '{}': call {} is {}, "
      "and {} on rank {}",
      ranks[other], ranks[right], mine.member->name, number, words(call), words(expected),
      ranks[right]);
}

// "" where all ranks of the group have the same list.
std::string DifferenceIn(const CallList& list) {
  const std::string mine = Hash128(list.lines);
  const std::vector<std::string> hashes = list.member->comm->HostAllGather(mine);
  if (std::all_of(hashes.begin(), hashes.end(), [&](const auto& h) { return h == hashes[0]; }))
    return "";
  return DescribeDifference(list, list.member->comm->HostAllGather(list.lines));
}

}  // namespace

std::optional<PlannedCall> CallOf(const KernelOp& op) {
  if (const auto* gather = std::get_if<AllGatherOp<View>>(&op))
    return PlannedCall{gather->axes, &gather->full};
  if (const auto* reduce = std::get_if<ReduceScatterOp<View>>(&op))
    return PlannedCall{reduce->axes, &reduce->full};
  if (const auto* reduce = std::get_if<AllReduceOp<View>>(&op))
    return PlannedCall{reduce->axes, &reduce->buffer};
  if (const auto* exchange = std::get_if<AllToAllOp<View>>(&op))
    return PlannedCall{exchange->axes, &exchange->received};
  return std::nullopt;
}

void RequireSamePlans(const CommSet& comms, const ShardLayout& layout,
                      const std::vector<const StepPlan*>& plans) {
  std::vector<CallList> lists;  // one per communicator, shared by streams or not
  for (const CommSet::Member& member : comms.members()) lists.push_back({&member, ""});
  std::string hashes;
  for (const StepPlan* plan : plans) {
    AddCalls(comms, layout, *plan, plan->prologue, "prologue", lists);
    AddCalls(comms, layout, *plan, plan->schedule, "step", lists);
    hashes += PlanHash(*plan) + " ";
  }
  std::string difference;
  for (const CallList& list : lists) {
    const std::string found = DifferenceIn(list);
    if (difference.empty()) difference = found;
  }
  const Communicator& world = comms.world();
  for (const std::string& theirs : comms.world().HostAllGather(difference))
    MR_REQUIRE(ErrorCode::kConfig, theirs.empty(),
               "{}: the ranks have different configurations or builds", theirs);
  const std::vector<std::string> all = comms.world().HostAllGather(hashes);
  for (size_t r = 0; r < all.size(); ++r)
    MR_REQUIRE(ErrorCode::kConfig, all[r] == hashes,
               "rank {} plans {}, but rank {} plans {}: the ranks have different configurations or "
               "builds",
               world.rank(), hashes, r, all[r]);
}

}  // namespace millrace
