#include "runtime/plan/cost/cost_model.h"

#include <algorithm>

#include "kernels/ops/cost.h"
#include "runtime/base/arithmetic.h"
#include "runtime/plan/cost/kernel_rates.h"

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
// Of a table that has a gradient already, the rows of these tokens are read and written again; at
// most so many of them are different.
void Refine(const EmbedGradOp<View>& op, OpCost& cost) {
  if (op.table_update != Update::kAccumulate) return;
  const Layout& table = op.d_table.layout;
  const int64_t rows = std::min(op.d_out.layout.dims[0], table.dims[0]);
  const int64_t untouched = (table.dims[0] - rows) * table.dims[1] * Bytes(table.dtype);
  cost.read_bytes -= untouched;
  cost.write_bytes -= untouched;
}
// One scale of all is found before x is read again, where nobody has formed its magnitude.
void Refine(const QuantizeOp<View>& op, OpCost& cost) {
  if (op.scales.layout.numel() == 1 && !op.magnitude)
    cost.read_bytes += op.x.layout.numel() * Bytes(op.x.layout.dtype);
}
// Of x, the squares are summed before it is read again.
void Refine(const MuonNormaliseOp<View>& op, OpCost& cost) {
  cost.read_bytes += op.x.layout.numel() * Bytes(op.x.layout.dtype);
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

template <class Op>
KernelRate RateOf(const Op&, const Machine& machine) {
  const auto rate = machine.kernels.find(std::string_view(Op::kName));
  return rate == machine.kernels.end() ? KernelRate{} : rate->second;
}

bool IsNarrow(const View& a, const View& b) {
  return IsFloatOf16Bits(a.layout.dtype) && IsFloatOf16Bits(b.layout.dtype);
}

template <class Op>
inline constexpr bool kIsProduct =
    std::is_same_v<Op, MatmulOp<View>> || std::is_same_v<Op, BatchedMatmulOp<View>> ||
    std::is_same_v<Op, GroupedMatmulOp<View>> || std::is_same_v<Op, GroupedWeightGradOp<View>>;

// Of the operands.
template <class Op>
DType ProductDType(const Op& op) {
  if (IsFloat8(op.a.layout.dtype)) return DType::kE4M3;
  if constexpr (std::is_same_v<Op, GroupedWeightGradOp<View>>)
    return IsNarrow(op.a, op.d_out) ? DType::kBF16 : DType::kF32;
  else
    return IsNarrow(op.a, op.b) ? DType::kBF16 : DType::kF32;
}

template <class Op>
double ArithmeticSeconds(const Op&, const OpCost& cost, const Machine& machine) {
  return cost.flops / machine.vector;
}
double ArithmeticSeconds(const MatmulOp<View>& op, const OpCost&, const Machine& machine) {
  const Layout& out = op.out.layout;
  return ProductSeconds(machine, ProductDType(op), out.dims[0], out.dims[1], op.a.layout.dims[1]);
}
double ArithmeticSeconds(const BatchedMatmulOp<View>& op, const OpCost&, const Machine& machine) {
  const auto& [count, m, n, unused] = op.out.layout.dims;
  const int64_t k = op.a.layout.dims[2];
  return count == 1 ? ProductSeconds(machine, ProductDType(op), m, n, k)
                    : GroupedSeconds(machine, ProductDType(op), count, m, n, k);
}
double ArithmeticSeconds(const GroupedMatmulOp<View>& op, const OpCost&, const Machine& machine) {
  const Layout &a = op.a.layout, &b = op.b.layout;
  return GroupedSeconds(machine, ProductDType(op), b.dims[0], CeilDiv(a.dims[0], b.dims[0]),
                        b.dims[2], b.dims[1]) /
         RateOf(op, machine).efficiency;
}
double ArithmeticSeconds(const GroupedWeightGradOp<View>& op, const OpCost&,
                         const Machine& machine) {
  const Layout& out = op.out.layout;
  return GroupedSeconds(machine, ProductDType(op), out.dims[0], out.dims[1], out.dims[2],
                        CeilDiv(op.a.layout.dims[0], out.dims[0])) /
         RateOf(op, machine).efficiency;
}
// Sequences that are split over ranks go by chunks, two to a rank: a call sees a chunk's queries.
template <class Op>
double AttentionSeconds(const Op& op, const OpCost& cost, const Machine& machine, Pass pass) {
  const Layout& q = op.q.layout;
  const int64_t length = op.rows.split() ? q.dims[1] / 2 : q.dims[1];
  return cost.flops / AttentionFlops(machine, length, q.dims[3], q.dtype, pass) +
         machine.attention_start;
}
double ArithmeticSeconds(const AttentionOp<View>& op, const OpCost& cost, const Machine& machine) {
  return AttentionSeconds(op, cost, machine, Pass::kForward);
}
double ArithmeticSeconds(const AttentionGradOp<View>& op, const OpCost& cost,
                         const Machine& machine) {
  return AttentionSeconds(op, cost, machine, Pass::kBackward);
}

// Of the op's time, the share in which a unit of the device has something of it to do.
template <class Op>
double Busy(const Op&, const Machine&) {
  return 1;
}
double Busy(const MatmulOp<View>& op, const Machine& machine) {
  const Layout& out = op.out.layout;
  return ProductBusy(machine, ProductDType(op), out.dims[0], out.dims[1], op.a.layout.dims[1]);
}

// Bytes that a kernel behind the op moves: an activation does not hide in a product's time, nor
// does what takes an f32 product out of scratch.
template <class Op>
int64_t BytesBehind(const Op&) {
  return 0;
}
int64_t BytesBehind(const MatmulOp<View>& op) {
  const int64_t out = op.out.layout.numel() * Bytes(op.out.layout.dtype);
  if (op.staged_bytes > 0)
    return op.staged_bytes + (op.update == Update::kAccumulate ? 2 : 1) * out;
  switch (op.epilogue) {
    case Epilogue::kGelu:
    case Epilogue::kBiasGelu:
      return 2 * out;  // reads the product, writes its activation
    case Epilogue::kGeluGrad:
      return 3 * out;  // reads the product and `pre`, writes
    case Epilogue::kNone:
    case Epilogue::kBias:
      return 0;
  }
  return 0;
}

// A kernel draws what its kind draws while it runs: products by their FLOPs, whose rate is that of
// whole products, what they read and write included; attention, which is slower in short pieces and
// no cooler then, by its time, as do kernels that move bytes.
template <class Op>
double Heat([[maybe_unused]] const Op& op, const OpEstimate& e, const Machine& machine) {
  using K = std::remove_cvref_t<Op>;
  const auto over = [](double work, double rate) { return rate > 0 ? work / rate : 0; };
  if constexpr (kIsProduct<K>) {
    // A device draws as much power while it multiplies FP8 as while it multiplies bf16.
    const bool fp8 = machine.gemm_fp8 > 0 && IsFloat8(op.a.layout.dtype);
    const double faster = fp8 ? machine.gemm_fp8 / machine.gemm_bf16 : 1;
    return over(e.flops, machine.capped_gemm * faster) +
           over(static_cast<double>(BytesBehind(op)), machine.capped_memory);
  }
  if constexpr (std::is_same_v<K, AttentionOp<View>> || std::is_same_v<K, AttentionGradOp<View>>) {
    const bool wide = op.q.layout.dims[3] > kCappedAttention.head_dim;
    const double rate = TrainingAttentionFlops(
        machine, wide ? kCappedWideAttention : kCappedAttention, op.q.layout.dtype);
    return over(e.seconds * rate, wide && machine.capped_wide_attention > 0
                                      ? machine.capped_wide_attention
                                      : machine.capped_attention);
  }
  if (e.wire_bytes == 0) return over(e.seconds * machine.memory, machine.capped_memory);
  return over(static_cast<double>(e.read_bytes + e.write_bytes), machine.capped_memory);
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
  } else if constexpr (std::is_same_v<Op, AllToAllOp<View>>) {
    const int64_t world = mesh.Size(op.axes);
    return (world - 1) * (op.sent.layout.numel() / world) * Bytes(op.sent.layout.dtype);
  } else {
    return 0;
  }
}

CollectiveCost WireCost(const AllGatherOp<View>& op, const GroupPlace& place, const Machine& m) {
  return CostOf(Collective::kAllGather, ByteCount(op.full), place, m);
}
CollectiveCost WireCost(const ReduceScatterOp<View>& op, const GroupPlace& place,
                        const Machine& m) {
  return CostOf(Collective::kReduceScatter, ByteCount(op.full), place, m);
}
CollectiveCost WireCost(const AllReduceOp<View>& op, const GroupPlace& place, const Machine& m) {
  const int64_t part = CeilDiv(op.buffer.layout.numel(), place.ranks);
  return CostOf(Collective::kAllReduce, part * place.ranks * Bytes(op.buffer.layout.dtype), place,
                m);
}
CollectiveCost WireCost(const AllToAllOp<View>& op, const GroupPlace& place, const Machine& m) {
  return CostOf(Collective::kAllToAll, ByteCount(op.sent), place, m);
}

int64_t& PurposeOf(const AllGatherOp<View>& op, WirePurposes& wire) {
  return op.axes == AxisSet::All() ? wire.statistics : wire.parameters;
}
int64_t& PurposeOf(const ReduceScatterOp<View>&, WirePurposes& wire) { return wire.gradients; }
int64_t& PurposeOf(const AllReduceOp<View>&, WirePurposes& wire) { return wire.gradient_replicas; }
int64_t& PurposeOf(const AllToAllOp<View>&, WirePurposes& wire) { return wire.exchanges; }

// f(op) for every op that the entries run, as often as they run it.
template <class F>
void ForEachRun(const StepPlan& plan, const std::vector<Entry>& entries, F&& f) {
  for (const Entry& entry : entries)
    for (const PlanOp& op : plan.body(entry).ops) f(op);
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
  void operator()(const AllToAllOp<View>& op) const {
    ++counters.all_to_alls;
    counters.exchanged_bytes += WireBytes(op, mesh);
  }
  void operator()(const MatmulOp<View>& op) const {
    counters.concatenated_bytes += op.staged_bytes;
  }
  void operator()(const ConcatOp<View>& op) const {
    counters.concatenated_bytes += ByteCount(op.x);
  }
  void operator()(const CastOp<View>& op) const { counters.cast_bytes += ByteCount(op.x); }
  void operator()(const AccumulateOp<View>& op) const { counters.copied_bytes += ByteCount(op.x); }
  void operator()(const TurnOp<View>& op) const { counters.copied_bytes += ByteCount(op.payload); }
  void operator()(const ShardQuantizeOp<View>& op) const {
    counters.cast_bytes += ByteCount(op.master);
  }
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

OpEstimate CostModel::Of(const KernelOp& op) {
  return std::visit(
      [&]<template <class> class Op>(const Op<View>& typed) {
        const OpCost cost = CostOf(typed);
        OpEstimate e{cost.flops, cost.read_bytes, cost.write_bytes, WireBytes(typed, mesh_)};
        const auto take = [&](double seconds, Bound bound) {
          if (seconds > e.seconds) {
            e.seconds = seconds;
            e.bound = bound;
          }
        };
        const KernelRate kernel = RateOf(typed, machine_);
        take(ArithmeticSeconds(typed, cost, machine_), Bound::kArithmetic);
        take(static_cast<double>(e.read_bytes + e.write_bytes) /
                 (machine_.memory * kernel.efficiency),
             Bound::kMemory);
        double start = machine_.kernel_start + kernel.start;
        if constexpr (requires { typed.axes; }) {
          if (e.wire_bytes > 0) {
            const CollectiveCost wire = WireCost(typed, places_.Of(typed.axes), machine_);
            take(wire.transfer(), Bound::kWire);
            e.link = wire.link;
            e.network = wire.network;
            e.peers = wire.algorithm == CollectiveAlgorithm::kPeers;
            start = wire.latency;
          }
        }
        if (const int64_t behind = BytesBehind(typed); behind > 0) {
          e.seconds += static_cast<double>(behind) / machine_.memory;
          if constexpr (requires { typed.staged_bytes; })
            if (typed.staged_bytes > 0) start += machine_.op_gap + machine_.kernel_start;
        }
        if (e.wire_bytes == 0) e.device = e.seconds * Busy(typed, machine_);
        e.heat = Heat(typed, e, machine_);
        if (start > e.seconds) e.bound = Bound::kLatency;
        e.start = start;
        e.seconds += start;
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
    if (const auto* gather = std::get_if<AllGatherOp<View>>(&op.op);
        gather != nullptr && op.stream != StreamId::kExchange &&
        &PurposeOf(*gather, wire) == &wire.parameters)
      wire.parameters_as[gather->full.layout.dtype] += WireBytes(*gather, mesh);
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
