#include "tools/launch/hang_watch.h"

#include <algorithm>

namespace millrace {
namespace {

bool HasRank(const std::vector<pid_t>& children, const MpirunFacts& facts) {
  return std::any_of(facts.ranks.begin(), facts.ranks.end(), [&](const auto& rank) {
    return std::find(children.begin(), children.end(), rank.second) != children.end();
  });
}

// Whether `condition` has held for `patience`.
bool HasHeld(bool condition, HangWatch::Time now, std::chrono::seconds patience,
             std::optional<HangWatch::Time>& since) {
  if (!condition)
    since.reset();
  else if (!since)
    since = now;
  return since && now - *since >= patience;
}

}  // namespace

Stuck HangWatch::Look(Time now, const ProcessLook& look, const MpirunFacts& facts) {
  seen_.insert(look.children.begin(), look.children.end());
  const bool over = look.is_mpirun && look.children.empty() && look.state == 'S' && look.in_lock &&
                    JobIsOver(facts);
  const bool waits = look.is_mpirun && !look.children.empty() && look.state != 'T' && facts.ended &&
                     !HasRank(look.children, facts);
  const bool hangs = HasHeld(over, now, kHang, over_since_);
  const bool deserted = HasHeld(waits, now, kOtherHost, waits_since_);
  if (hangs) return Stuck::kNoRankLeft;
  return deserted ? Stuck::kOtherHost : Stuck::kNo;
}

// Whether no rank can be left anywhere, given that there is no child. Where the kernel does not
// tell children, none was ever seen, and nothing is known.
bool HangWatch::JobIsOver(const MpirunFacts& facts) const {
  if (seen_.empty()) return false;
  if (facts.ended) return true;
  return facts.world > 0 && facts.ranks.size() == static_cast<size_t>(facts.world) &&
         std::all_of(facts.ranks.begin(), facts.ranks.end(),
                     [this](const auto& rank) { return seen_.contains(rank.second); });
}

}  // namespace millrace
