#include "runtime/plan/cost/cost_model.h"

#include <algorithm>
#include <map>

#include "kernels/ops/cost.h"
#include "runtime/base/arithmetic.h"

namespace millrace {
namespace {

// Traffic of ops whose access says more than they usually touch.
template <class Op>
void Refine(const Op&, OpCost&) {}
void Refine(const ZeroRangesOp<View>& op, OpCost& cost) {
  int64_t elements = 0;
  for (const Range& range : *op.ranges) elements += range.end - range.begin;
  cost.read_bytes = 0;
  cost.write_bytes = elements * Bytes(op.flat.layout.dtype);
}
// Writes x only when a fault is injected.
void Refine(const FiniteScanOp<View>& op, OpCost& cost) {
  cost.write_bytes -= op.x.layout.numel() * Bytes(op.x.layout.dtype);
}

template <template <class> class Op>
OpCost CostOf(const Op<View>& op) {
  OpCost cost = Cost(ConvertOp<Op, View, Shape>(op, [](const View& view) {
    return Shape{view.layout, static_cast<bool>(view)};
  }));
  Refine(op, cost);
  return cost;
}

// The narrowest class that holds the head dim, else the widest; in it the longest length reached,
// else the shortest.
double AttentionFlops(const Layout& q, const Machine& machine, bool backward) {
  const int64_t length = q.dims[1], head_dim = q.dims[3];
  const AttentionRate* chosen = nullptr;
  for (const AttentionRate& rate : machine.attention) {
    const bool wider = chosen != nullptr && rate.head_dim > chosen->head_dim;
    if (chosen == nullptr || (wider ? chosen->head_dim < head_dim : rate.length <= length))
      chosen = &rate;
  }
  const double gemm = machine.gemm(q.dtype);
  if (chosen == nullptr) return gemm;
  return std::min(backward ? chosen->backward : chosen->forward, gemm);
}

template <class Op>
double RateOf(const Op& op, const Machine& machine) {
  if constexpr (std::is_same_v<Op, MatmulOp<View>>) {
    const bool narrow = op.a.layout.dtype == DType::kBF16 && op.b.layout.dtype == DType::kBF16;
    return machine.gemm(narrow ? DType::kBF16 : DType::kF32);
  } else if constexpr (std::is_same_v<Op, AttentionOp<View>>) {
    return AttentionFlops(op.q.layout, machine, false);
  } else if constexpr (std::is_same_v<Op, AttentionGradOp<View>>) {
    return AttentionFlops(op.q.layout, machine, true);
  } else {
    return machine.vector;
  }
}

int64_t ByteCount(const View& view) { return view.layout.numel() * Bytes(view.layout.dtype); }

// The formulas of comm/communicator.h.
template <class Op>
int64_t WireBytes(const Op& op, const Mesh& mesh) {
  if constexpr (std::is_same_v<Op, AllGatherOp<View>> ||
                std::is_same_v<Op, ReduceScatterOp<View>>) {
    const int64_t world = mesh.Size(op.axes);
    return (world - 1) * (op.full.layout.numel() / world) * Bytes(op.full.layout.dtype);
  } else if constexpr (std::is_same_v<Op, AllReduceOp<View>>) {
    const int64_t world = mesh.Size(op.axes);
    return 2 * (world - 1) * CeilDiv(op.buffer.layout.numel(), world) *
           Bytes(op.buffer.layout.dtype);
  } else {
    return 0;
  }
}

int64_t& PurposeOf(const AllGatherOp<View>& op, WirePurposes& wire) {
  return op.axes == AxisSet::All() ? wire.statistics : wire.parameters;
}
int64_t& PurposeOf(const ReduceScatterOp<View>&, WirePurposes& wire) { return wire.gradients; }
int64_t& PurposeOf(const AllReduceOp<View>&, WirePurposes& wire) { return wire.gradient_replicas; }

// f(op) for every op that the entries run, as often as they run it.
template <class F>
void ForEachRun(const StepPlan& plan, const std::vector<Entry>& entries, F&& f) {
  for (const Entry& entry : entries)
    for (const PlanOp& op : plan.bodies[static_cast<size_t>(entry.body)].ops) f(op);
}

struct Counter {
  PlanCounters& counters;
  Mesh mesh;

  void operator()(const AllGatherOp<View>& op) const {
    ++counters.all_gathers;
    counters.gathered_bytes += WireBytes(op, mesh);
    if (op.shard && op.shard.layout.dtype != op.full.layout.dtype)
      counters.cast_bytes += ByteCount(op.shard);
  }
  void operator()(const ReduceScatterOp<View>& op) const {
    ++counters.reduce_scatters;
    counters.reduced_bytes += WireBytes(op, mesh);
  }
  void operator()(const AllReduceOp<View>& op) const {
    ++counters.all_reduces;
    counters.all_reduced_bytes += WireBytes(op, mesh);
  }
  void operator()(const MatmulOp<View>& op) const {
    counters.concatenated_bytes += op.staged_bytes;
  }
  void operator()(const ConcatOp<View>& op) const {
    counters.concatenated_bytes += ByteCount(op.x);
  }
  void operator()(const CastOp<View>& op) const { counters.cast_bytes += ByteCount(op.x); }
  void operator()(const AccumulateOp<View>& op) const { counters.copied_bytes += ByteCount(op.x); }
  template <class Op>
  void operator()(const Op&) const {}
};

}  // namespace

std::string_view Name(Bound bound) {
  switch (bound) {
    case Bound::kNone:
      return "none";
    case Bound::kArithmetic:
      return "arithmetic";
    case Bound::kMemory:
      return "memory";
    case Bound::kWire:
      return "wire";
    case Bound::kLatency:
      return "latency";
  }
  return "?";
}

double GroupLink(AxisSet axes, const Mesh& mesh, const Machine& machine) {
  const int hosts_ranks = machine.ranks_per_host, world = mesh.world(), size = mesh.Size(axes);
  if (hosts_ranks == 0 || world <= hosts_ranks || size == 1) return machine.link;
  // Runs of neighbouring ranks: each begins and ends somewhere on a host, the same way again after
  // as many groups as a host has ranks.
  if (mesh.Group(0, axes).back() == size - 1) {
    double rate = machine.link;
    for (int g = 0; g < std::min(world / size, hosts_ranks); ++g) {
      const int begin = g * size, end = begin + size;
      if (begin / hosts_ranks == (end - 1) / hosts_ranks) continue;
      const int first = hosts_ranks - begin % hosts_ranks, rest = (end - 1) % hosts_ranks + 1;
      rate = std::min(rate, LinkBetweenHosts(machine, std::min(first, rest)));
    }
    return rate;
  }
  int fewest = hosts_ranks;  // members of a group on one of its hosts
  bool apart = false;        // some group has more than one host
  for (int first = 0; first < world; ++first) {
    if (mesh.Index(first, axes) != 0) continue;
    std::map<int, int> members;  // by host
    for (const int rank : mesh.Group(first, axes)) ++members[rank / hosts_ranks];
    if (members.size() == 1) continue;
    apart = true;
    for (const auto& [host, count] : members) fewest = std::min(fewest, count);
  }
  return apart ? LinkBetweenHosts(machine, fewest) : machine.link;
}

OpEstimate Estimate(const KernelOp& op, const Mesh& mesh, const Machine& machine) {
  return std::visit(
      [&]<template <class> class Op>(const Op<View>& typed) {
        const OpCost cost = CostOf(typed);
        OpEstimate e{cost.flops, cost.read_bytes, cost.write_bytes, WireBytes(typed, mesh),
                     0,          Bound::kNone};
        const auto take = [&](double seconds, Bound bound) {
          if (seconds > e.seconds) {
            e.seconds = seconds;
            e.bound = bound;
          }
        };
        take(e.flops / RateOf(typed, machine), Bound::kArithmetic);
        take(static_cast<double>(e.read_bytes + e.write_bytes) / machine.memory, Bound::kMemory);
        if constexpr (requires { typed.axes; })
          take(static_cast<double>(e.wire_bytes) / GroupLink(typed.axes, mesh, machine),
               Bound::kWire);
        if (e.wire_bytes > 0) {
          if (machine.collective_latency > e.seconds) e.bound = Bound::kLatency;
          e.seconds += machine.collective_latency;
        }
        return e;
      },
      op);
}

PlanCounters CountersOf(const StepPlan& plan, const std::vector<Entry>& entries, const Mesh& mesh) {
  PlanCounters counters;
  ForEachRun(plan, entries, [&](const PlanOp& op) {
    ++counters.ops;
    std::visit(Counter{counters, mesh}, op.op);
  });
  return counters;
}

WirePurposes WireByPurpose(const StepPlan& plan, const std::vector<Entry>& entries,
                           const Mesh& mesh) {
  WirePurposes wire;
  ForEachRun(plan, entries, [&](const PlanOp& op) {
    std::visit(
        [&](const auto& typed) {
          if constexpr (requires { typed.axes; })
            (op.stream == StreamId::kExchange ? wire.exchanges : PurposeOf(typed, wire)) +=
                WireBytes(typed, mesh);
        },
        op.op);
  });
  return wire;
}

}  // namespace millrace
