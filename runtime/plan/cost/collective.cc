#include "runtime/plan/cost/collective.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using Algorithm = CollectiveAlgorithm;

// Of a link's rate, what a tree carries.
constexpr double kTreeEfficiency = 0.92;

// Of a group whose first member is on each place of a host in turn, neighbours `stride` apart.
// Groups of one axis, or of neighbouring axes, are such runs.
void Count(const std::vector<int>& group, int ranks_per_host, GroupPlace& place) {
  std::vector<int> members;
  int host = -1;
  for (const int rank : group) {
    if (rank / ranks_per_host != host) members.push_back(0);
    host = rank / ranks_per_host;
    ++members.back();
  }
  const auto [fewest, most] = std::minmax_element(members.begin(), members.end());
  place.hosts = std::max(place.hosts, static_cast<int>(members.size()));
  if (members.size() > 1) place.fewest = std::min(place.fewest, *fewest);
  place.even = place.even && *fewest == *most;
}

double WireBytes(Collective what, int64_t full_bytes, int ranks) {
  const double once = static_cast<double>(full_bytes) / ranks * (ranks - 1);
  return what == Collective::kAllReduce ? 2 * once : once;
}

CollectiveCost Ring(Collective what, int64_t bytes, const GroupPlace& place, const Machine& m) {
  const double wire = WireBytes(what, bytes, place.ranks);
  const int rounds = what == Collective::kAllReduce ? 2 : 1, hops = place.ranks - 1;
  const int apart = place.hosts == 1 ? 0 : std::min(place.hosts, hops);
  CollectiveCost cost;
  cost.algorithm = Algorithm::kRing;
  cost.latency = m.collective_latency + rounds * ((hops - apart) * m.link_hop + apart * m.host_hop);
  cost.link = wire / m.link;
  cost.network = place.hosts == 1 ? 0 : wire / (m.host_link * place.fewest);
  return cost;
}

CollectiveCost Direct(int64_t bytes, const GroupPlace& place, const Machine& m) {
  const double apart = static_cast<double>(place.ranks - place.fewest) / place.ranks;
  return {.latency = m.collective_latency + (place.hosts == 1 ? m.link_hop : m.host_hop),
          .link = WireBytes(Collective::kAllToAll, bytes, place.ranks) / m.link,
          .network = place.hosts == 1 ? 0 : static_cast<double>(bytes) * apart / m.host_link};
}

CollectiveCost Tree(int64_t bytes, const GroupPlace& place, const Machine& m) {
  CollectiveCost cost = Ring(Collective::kAllReduce, bytes, place, m);
  cost.algorithm = Algorithm::kTree;
  const int chain = static_cast<int>(CeilDiv(place.ranks, place.hosts)) - 1;
  const int depth = static_cast<int>(std::ceil(std::log2(place.hosts)));
  cost.latency = m.collective_latency + 2 * (chain * m.link_hop + depth * m.host_hop);
  cost.link /= kTreeEfficiency;
  cost.network /= kTreeEfficiency;
  return cost;
}

// Phases follow each other: their transfers add up, and the sum is what the busier kind of link
// takes in each.
CollectiveCost Hierarchical(Collective what, int64_t bytes, const GroupPlace& place,
                            const Machine& m) {
  const int members = place.ranks / place.hosts;
  const GroupPlace inner{members, 1, members}, outer{place.hosts, place.hosts, 1};
  const int64_t slice = CeilDiv(bytes, members);
  CollectiveCost sum;
  sum.algorithm = Algorithm::kHierarchical;
  const auto add = [&](Collective phase, int64_t of, const GroupPlace& over) {
    if (over.ranks == 1) return;
    const CollectiveCost cost = Ring(phase, of, over, m);
    sum.latency += cost.latency;
    // The inner phases leave the network idle, the outer one the links within the host.
    (over.hosts > 1 ? sum.network : sum.link) += cost.transfer();
  };
  if (what != Collective::kAllGather) add(Collective::kReduceScatter, bytes, inner);
  add(what, slice, outer);
  if (what != Collective::kReduceScatter) add(Collective::kAllGather, bytes, inner);
  // One after the other: as if the slower link were in use throughout.
  (sum.network > sum.link ? sum.network : sum.link) = sum.link + sum.network;
  return sum;
}

CollectiveCost Peers(Collective what, int64_t bytes, const GroupPlace& place, const Machine& m) {
  CollectiveCost cost;
  cost.algorithm = Algorithm::kPeers;
  cost.latency = m.peer_latency > 0 ? m.peer_latency : m.collective_latency + m.link_hop;
  cost.link = WireBytes(what, bytes, place.ranks) / (m.peer_link > 0 ? m.peer_link : m.link);
  return cost;
}

}  // namespace

GroupPlace PlaceOf(AxisSet axes, const Mesh& mesh, int ranks_per_host) {
  const int world = mesh.world(), size = mesh.Size(axes);
  GroupPlace place{size, 1, size};
  if (ranks_per_host == 0 || world <= ranks_per_host || size == 1) return place;
  // Neighbouring ranks: groups lie the same way again after as many as a host has ranks.
  const bool run = mesh.Group(0, axes).back() == size - 1;
  const int period = run ? size * (ranks_per_host / std::gcd(size, ranks_per_host)) : world;
  if (run) {
    for (int first = 0; first < std::min(period, world); first += size) {
      std::vector<int> group(static_cast<size_t>(size));
      std::iota(group.begin(), group.end(), first);
      Count(group, ranks_per_host, place);
    }
    return place;
  }
  for (int first = 0; first < world; ++first)
    if (mesh.Index(first, axes) == 0) Count(mesh.Group(first, axes), ranks_per_host, place);
  return place;
}

bool Serves(CollectiveAlgorithm algorithm, Collective what, const GroupPlace& place,
            const Machine& machine) {
  switch (algorithm) {
    case Algorithm::kPeers:
      return machine.maps_peers && place.hosts == 1 && what != Collective::kAllReduce &&
             what != Collective::kAllToAll;
    case Algorithm::kRing:
      return true;
    case Algorithm::kTree:
      return what == Collective::kAllReduce;
    case Algorithm::kHierarchical:
      return place.hosts > 1 && place.even && what != Collective::kAllToAll;
  }
  return false;
}

CollectiveCost CostBy(CollectiveAlgorithm algorithm, Collective what, int64_t full_bytes,
                      const GroupPlace& place, const Machine& machine) {
  MR_CHECK(Serves(algorithm, what, place, machine), "{} serves no such collective",
           Name(algorithm));
  if (place.ranks == 1) return {.algorithm = algorithm};
  switch (algorithm) {
    case Algorithm::kPeers:
      return Peers(what, full_bytes, place, machine);
    case Algorithm::kTree:
      return Tree(full_bytes, place, machine);
    case Algorithm::kHierarchical:
      return Hierarchical(what, full_bytes, place, machine);
    case Algorithm::kRing:
      break;
  }
  if (what == Collective::kAllToAll) return Direct(full_bytes, place, machine);
  return Ring(what, full_bytes, place, machine);
}

CollectiveCost CostOf(Collective what, int64_t full_bytes, const GroupPlace& place,
                      const Machine& machine) {
  if (Serves(Algorithm::kPeers, what, place, machine))
    return CostBy(Algorithm::kPeers, what, full_bytes, place, machine);
  CollectiveCost best;
  double least = std::numeric_limits<double>::infinity();
  for (const Algorithm algorithm : machine.algorithms) {
    if (!Serves(algorithm, what, place, machine)) continue;
    const CollectiveCost cost = CostBy(algorithm, what, full_bytes, place, machine);
    if (cost.seconds() >= least) continue;
    least = cost.seconds();
    best = cost;
  }
  return best;
}

const GroupPlace& Places::Of(AxisSet axes) {
  const auto [it, added] = places_.try_emplace(axes);
  if (added) it->second = PlaceOf(axes, mesh_, ranks_per_host_);
  return it->second;
}

}  // namespace millrace
