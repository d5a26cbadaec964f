#include "runtime/run/training/rank_votes.h"

#include <fmt/core.h>

#include <optional>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/exec/agreement/order_log.h"
#include "runtime/exec/engine.h"

namespace millrace {
namespace {

// Of digests of what each rank has issued; histories only where they differ.
std::string OrderDifferenceText(Session& session, int64_t done,
                                const std::vector<std::string>& digests) {
  const CommSet& comms = session.engine().comms();
  const std::optional<OrderDifference> difference = FirstDifference(comms, digests);
  if (!difference) return "";
  std::vector<std::string> units;
  for (const LayoutUnit& unit : session.run().layout.units) units.push_back(unit.name);
  const std::vector<std::string> all =
      comms.world().HostAllGather(session.engine().order()->History(difference->comm));
  std::vector<std::string> histories;
  for (const int rank : difference->ranks) histories.push_back(all[static_cast<size_t>(rank)]);
  return fmt::format(
      "after step {}: {}", done,
      DescribeOrder(comms.members()[difference->comm].name, difference->ranks, histories, units));
}

}  // namespace

RankVotes MeetRanks(Session& session, int64_t done, bool stop, char save, bool compare_order) {
  const std::string warnings = session.log().TakeWarnings();
  constexpr size_t kVote = 3;
  std::string mine = {stop ? '1' : '0', save, warnings.empty() ? '0' : '1'};
  if (compare_order) mine += session.engine().order()->Digests();
  RankVotes votes;
  bool warned = false;
  std::vector<std::string> digests;
  Communicator& world = session.engine().comms().world();
  for (const std::string& vote : world.HostAllGather(mine)) {
    MR_REQUIRE(ErrorCode::kComm, vote.size() >= kVote,
               "after step {}: a rank is in another exchange than this one: the ranks make other "
               "calls, or in another order",
               done);
    votes.stop |= vote[0] == '1';
    votes.saves += vote[1];
    warned |= vote[2] == '1';
    digests.push_back(vote.substr(kVote));
  }
  if (warned) session.log().Meet(world.HostAllGather(warnings));
  if (compare_order) votes.order_difference = OrderDifferenceText(session, done, digests);
  return votes;
}

}  // namespace millrace
