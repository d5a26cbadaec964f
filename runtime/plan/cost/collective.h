// What a collective costs: by algorithm, bytes, group and the links that the group crosses. Pure
// arithmetic; closed forms below, each a test.
//
// A group has n ranks on k hosts. Hosts hold neighbouring ranks, Machine::ranks_per_host each, the
// last one what is left; inner axes of the mesh run fastest, so groups over them lie within a host.
// m is the fewest members that any such group has on any of its hosts: so many network cards carry
// what its hosts exchange, each a ring of its own. S is the full buffer's bytes, B a rank's rate
// within its host, H between hosts, b and h the seconds of one hop there, a those of a call.
//
//   ring        bytes sent by a rank: W = S (n-1)/n; a sum over replicas goes round twice: 2 W
//               link W / B, network W / (m H)   (none on one host)
//               latency a + (n-1-c) b + c h, c = min(k, n-1) hops between hosts; twice for a sum
//   tree        sums only: link 2 W / B', network 2 W / (m H'), B' = 0.92 B: a chain within a
//                 host, a
//               double binary tree between hosts; latency a + 2 ((ceil(n/k)-1) b + ceil(log2 k) h)
//   hierarchical  where every host has m = n/k members: a gather is a ring of S/m bytes over k
//                 hosts
//               on every card, then a ring of S over the m ranks of a host; a reduce-scatter the
//               reverse; a sum: inner reduce-scatter of S, outer sum of S/m, inner gather of S
//   all-to-all  of S / n to each: all send to all others at once. Link W / B, network
//               S (n-m)/n / H, each rank's card carrying its own, latency a + b, or a + h across
//               hosts
//   peers       on one host, gathers and reduce-scatters: every rank stores to (loads from) all
//               others at once: W / peer_link + peer_latency, whatever n
//
// Source: the ring's and tree's hops as NCCL's own tuning model counts them (src/graph/tuning.cc).
#pragma once

#include <cstdint>
#include <map>

#include "runtime/base/mesh.h"
#include "runtime/plan/cost/machine.h"

namespace millrace {

// Where the groups over some axes lie: ranks of a group, the most hosts that any has, the fewest
// members that any has on any of its hosts (all, on one host).
struct GroupPlace {
  int ranks = 1, hosts = 1, fewest = 1;
  bool even = true;  // every host of every group has as many members
  bool operator==(const GroupPlace&) const = default;
};
// ranks_per_host 0: all ranks are on one host.
GroupPlace PlaceOf(AxisSet axes, const Mesh& mesh, int ranks_per_host);

enum class Collective { kAllGather, kReduceScatter, kAllReduce, kAllToAll };

// Seconds: latency, then as long as the busier of the two kinds of link is in use.
struct CollectiveCost {
  double latency = 0, link = 0, network = 0;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kRing;
  double transfer() const { return link > network ? link : network; }
  double seconds() const { return latency + transfer(); }
};

// Whether the algorithm serves such a collective and group on that machine.
bool Serves(CollectiveAlgorithm algorithm, Collective what, const GroupPlace& place,
            const Machine& machine);

// One rank: no time. REQUIRES: Serves.
CollectiveCost CostBy(CollectiveAlgorithm algorithm, Collective what, int64_t full_bytes,
                      const GroupPlace& place, const Machine& machine);

// The fastest of the machine's: peers where it maps them, else what its library has.
CollectiveCost CostOf(Collective what, int64_t full_bytes, const GroupPlace& place,
                      const Machine& machine);

// The places of a mesh's groups, each found once.
class Places {
 public:
  Places(const Mesh& mesh, int ranks_per_host) : mesh_(mesh), ranks_per_host_(ranks_per_host) {}
  const GroupPlace& Of(AxisSet axes);

 private:
  Mesh mesh_;
  int ranks_per_host_;
  std::map<AxisSet, GroupPlace> places_;
};

}  // namespace millrace
