#include "runtime/plan/cost/collective.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

namespace millrace {
namespace {

using Algorithm = CollectiveAlgorithm;
constexpr Collective kGather = Collective::kAllGather, kScatter = Collective::kReduceScatter,
                     kSum = Collective::kAllReduce;

// Powers of two, so that sums of quotients are exact. 8 ranks to a host.
Machine Hosts() {
  Machine m;
  m.link = 256;
  m.host_link = 16;
  m.ranks_per_host = 8;
  m.collective_latency = 1024;
  m.link_hop = 2;
  m.host_hop = 64;
  return m;
}

GroupPlace On(int ranks, int hosts) { return {ranks, hosts, ranks / hosts, true}; }

TEST_CASE("a ring on one host sends all but a rank's own part at the link's rate", "[plan][cost]") {
  const int n = GENERATE(2, 4, 8);
  const int64_t bytes = 4096 * n;
  for (const Collective what : {kGather, kScatter}) {
    const CollectiveCost cost = CostBy(Algorithm::kRing, what, bytes, On(n, 1), Hosts());
    CHECK(cost.link == 4096.0 * (n - 1) / 256);
    CHECK(cost.network == 0);
    CHECK(cost.latency == 1024 + (n - 1) * 2);
    CHECK(cost.seconds() == cost.latency + cost.link);
  }
  const CollectiveCost sum = CostBy(Algorithm::kRing, kSum, bytes, On(n, 1), Hosts());
  CHECK(sum.link == 2 * 4096.0 * (n - 1) / 256);
  CHECK(sum.latency == 1024 + 2 * (n - 1) * 2);
}

TEST_CASE("pieces go straight to their ranks, those for other hosts by the sender's card",
          "[plan][cost]") {
  const int n = GENERATE(2, 4, 8);
  const auto of = [&](const GroupPlace& place) {
    return CostOf(Collective::kAllToAll, 4096 * place.ranks, place, Hosts());
  };
  const CollectiveCost near = of(On(n, 1));
  CHECK(near.link == 4096.0 * (n - 1) / 256);
  CHECK(near.network == 0);
  CHECK(near.latency == 1024 + 2);
  GroupPlace place = On(4 * n, 4);
  place.fewest = n;
  const CollectiveCost far = of(place);
  CHECK(far.link == 4096.0 * (4 * n - 1) / 256);
  CHECK(far.network == 4096.0 * 3 * n / 16);
  CHECK(far.latency == 1024 + 64);
  // Over peers' memory fewer rows may go; the estimate is that of whole pieces.
  Machine peers = Hosts();
  peers.maps_peers = true;
  CHECK(CostOf(Collective::kAllToAll, 4096 * n, On(n, 1), peers).seconds() == near.seconds());
}

TEST_CASE("a ring over hosts has a card for each member, and as many slow hops as hosts",
          "[plan][cost]") {
  const int k = GENERATE(2, 4, 16), m = GENERATE(1, 2, 8);
  const int n = k * m;
  const CollectiveCost cost = CostBy(Algorithm::kRing, kGather, 1024 * n, On(n, k), Hosts());
  CHECK(cost.link == 1024.0 * (n - 1) / 256);
  CHECK(cost.network == 1024.0 * (n - 1) / (16 * m));
  const int slow = m == 1 ? k - 1 : k;  // n - 1 hops in all, the ring's last is not needed
  CHECK(cost.latency == 1024 + slow * 64 + (n - 1 - slow) * 2);
  CHECK(cost.transfer() == std::max(cost.link, cost.network));
  // Cards as fast as the link: as on one host, but for the hops.
  Machine fast = Hosts();
  fast.host_link = 256;
  fast.host_hop = fast.link_hop;
  CHECK(CostBy(Algorithm::kRing, kGather, 1024 * n, On(n, k), fast).seconds() ==
        CostBy(Algorithm::kRing, kGather, 1024 * n, On(n, 1), fast).seconds());
}

TEST_CASE("a tree's hops grow with the logarithm of the hosts", "[plan][cost]") {
  const CollectiveCost tree = CostBy(Algorithm::kTree, kSum, 1 << 20, On(128, 16), Hosts());
  const CollectiveCost ring = CostBy(Algorithm::kRing, kSum, 1 << 20, On(128, 16), Hosts());
  CHECK(tree.latency == 1024 + 2 * (7 * 2 + 4 * 64));
  CHECK(tree.network == Approx(ring.network / 0.92));
  CHECK(tree.link == Approx(ring.link / 0.92));
  CHECK_FALSE(Serves(Algorithm::kTree, kGather, On(128, 16), Hosts()));
}

TEST_CASE("a hierarchical sum: inner reduce-scatter, outer sum of a slice, inner gather",
          "[plan][cost]") {
  const Machine m = Hosts();
  const GroupPlace place = On(32, 4), inner = On(8, 1), outer = On(4, 4);
  const auto ring = [&](Collective what, int64_t bytes, const GroupPlace& over) {
    return CostBy(Algorithm::kRing, what, bytes, over, m).seconds();
  };
  const int64_t bytes = 1 << 20;
  CHECK(CostBy(Algorithm::kHierarchical, kSum, bytes, place, m).seconds() ==
        ring(kScatter, bytes, inner) + ring(kSum, bytes / 8, outer) + ring(kGather, bytes, inner));
  CHECK(CostBy(Algorithm::kHierarchical, kGather, bytes, place, m).seconds() ==
        ring(kGather, bytes / 8, outer) + ring(kGather, bytes, inner));
  CHECK(CostBy(Algorithm::kHierarchical, kScatter, bytes, place, m).seconds() ==
        ring(kScatter, bytes, inner) + ring(kScatter, bytes / 8, outer));
  // The network carries a slice of each host's, not the whole.
  const CollectiveCost sum = CostBy(Algorithm::kHierarchical, kSum, bytes, place, m);
  CHECK(sum.network - sum.link == Approx(2.0 * (bytes / 8) * 3 / 4 / 16));
  // Uneven hosts, or one: not this way.
  CHECK_FALSE(Serves(Algorithm::kHierarchical, kSum, {12, 2, 4, false}, m));
  CHECK_FALSE(Serves(Algorithm::kHierarchical, kSum, inner, m));
}

TEST_CASE("peers on one host take one hop, whatever their number", "[plan][cost]") {
  Machine m = Hosts();
  m.maps_peers = true;
  m.peer_link = 512;
  m.peer_latency = 3;
  const CollectiveCost cost = CostOf(kGather, 8 * 512, On(8, 1), m);
  CHECK(cost.algorithm == Algorithm::kPeers);
  CHECK(cost.latency == 3);
  CHECK(cost.link == 7);
  CHECK(CostOf(kSum, 8 * 512, On(8, 1), m).algorithm == Algorithm::kRing);
  CHECK(CostOf(kGather, 8 * 512, On(16, 2), m).algorithm == Algorithm::kRing);
  m.peer_link = m.peer_latency = 0;  // not measured: the link's
  CHECK(CostOf(kGather, 8 * 512, On(8, 1), m).seconds() == 1024 + 2 + 7 * 512 / 256.0);
}

TEST_CASE("the fastest algorithm that the library has; small sums between many hosts by tree",
          "[plan][cost]") {
  Machine m = Hosts();
  const GroupPlace many = On(1024, 128);
  CHECK(CostOf(kSum, 1024, many, m).algorithm == Algorithm::kRing);
  m.algorithms = {Algorithm::kRing, Algorithm::kTree};
  CHECK(CostOf(kSum, 1024, many, m).algorithm == Algorithm::kTree);
  CHECK(CostOf(kSum, int64_t{1} << 40, many, m).algorithm == Algorithm::kRing);
  CHECK(CostOf(kGather, 1024, many, m).algorithm == Algorithm::kRing);
  m.algorithms.push_back(Algorithm::kHierarchical);
  CHECK(CostOf(kGather, 1024, many, m).algorithm == Algorithm::kHierarchical);
}

TEST_CASE("more bytes, ranks or hosts never cost less; one rank costs nothing", "[plan][cost]") {
  Machine m = Hosts();
  m.algorithms = {Algorithm::kRing, Algorithm::kTree};
  for (const Collective what : {kGather, kScatter, kSum}) {
    CHECK(CostOf(what, 1 << 20, On(1, 1), m).seconds() == 0);
    double before = 0;
    for (int k = 1; k <= 512; k *= 2) {
      const double now = CostOf(what, 1 << 20, On(8 * k, k), m).seconds();
      CAPTURE(k);
      CHECK(now > before);
      before = now;
      CHECK(CostOf(what, 1 << 21, On(8 * k, k), m).seconds() > now);
    }
  }
}

// Members of each group on each host, counted out.
GroupPlace Counted(AxisSet axes, const Mesh& mesh, int ranks_per_host) {
  GroupPlace place{mesh.Size(axes), 1, mesh.Size(axes)};
  for (int first = 0; first < mesh.world(); ++first) {
    std::map<int, int> members;
    for (const int rank : mesh.Group(first, axes)) ++members[rank / ranks_per_host];
    place.hosts = std::max(place.hosts, static_cast<int>(members.size()));
    for (const auto& [host, count] : members) {
      if (members.size() > 1) place.fewest = std::min(place.fewest, count);
      place.even = place.even && count == members.begin()->second;
    }
  }
  return place;
}

TEST_CASE("the place of any set of axes, against groups counted out", "[plan][cost]") {
  int between_hosts = 0;
  for (const int replicate : {1, 2, 3, 8})
    for (const int shard : {1, 2, 5, 8, 12})
      for (const int tensor : {1, 2, 3})
        for (const int ranks_per_host : {3, 4, 8}) {
          const Mesh mesh = Mesh(replicate, shard).With(Axis::kTensor, tensor);
          for (const AxisSet axes :
               {AxisSet(Axis::kReplicate), AxisSet(Axis::kShard), AxisSet(Axis::kTensor),
                AxisSet{Axis::kShard, Axis::kTensor}, AxisSet{Axis::kReplicate, Axis::kTensor},
                AxisSet::All(), AxisSet()}) {
            CAPTURE(ToString(mesh), ToString(axes), ranks_per_host);
            const GroupPlace place = PlaceOf(axes, mesh, ranks_per_host);
            const GroupPlace counted = Counted(axes, mesh, ranks_per_host);
            REQUIRE(place.ranks == counted.ranks);
            REQUIRE(place.hosts == counted.hosts);
            REQUIRE(place.fewest == counted.fewest);
            REQUIRE(place.even == counted.even);
            between_hosts += counted.hosts > 1;
          }
        }
  CHECK(between_hosts > 200);
  CHECK(PlaceOf(AxisSet::All(), {512, 8}, 0) == GroupPlace{4096, 1, 4096, true});
  CHECK(PlaceOf(Axis::kShard, {512, 8}, 8) == GroupPlace{8, 1, 8, true});
  CHECK(PlaceOf(Axis::kReplicate, {512, 8}, 8) == GroupPlace{512, 512, 1, true});
  CHECK(PlaceOf(Axis::kShard, {1, 4096}, 8) == GroupPlace{4096, 512, 8, true});
}

}  // namespace
}  // namespace millrace
