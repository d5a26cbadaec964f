#include "runtime/exec/bound_op.h"

#include <vector>

#include "kernels/ops/any_op.h"
#include "runtime/base/error.h"

namespace millrace {

template class AnyOp<TensorView>;
#define MILLRACE_FROM(Name, ...) template AnyOp<TensorView>::AnyOp(Name##Op<TensorView>);
MILLRACE_KERNEL_OPS(MILLRACE_FROM)
MILLRACE_COLLECTIVE_OPS(MILLRACE_FROM)
#undef MILLRACE_FROM

TensorView BindView(const Binding& binding, const View& view, int64_t position, int microbatch) {
  if (!view) return {};
  const int64_t element =
      view.FirstOn(binding.mesh, binding.rank) + microbatch * view.microbatch_stride;
  const int64_t offset = binding.plan->buffer(view.buffer).OffsetAt(position);
  return {binding.arena + offset + element * Bytes(view.layout.dtype), view.layout};
}

BoundOp BindOp(const Binding& binding, const KernelOp& op, int64_t position, int microbatch) {
  return std::visit(
      [&]<template <class> class Op>(const Op<View>& typed) -> BoundOp {
        auto bound = ConvertOp<Op, View, TensorView>(
            typed, [&](const View& view) { return BindView(binding, view, position, microbatch); });
        ForEachRankInt(bound, [&](RankInt& integer, std::string_view) {
          integer = integer.At(binding.mesh, binding.rank);
        });
        return bound;
      },
      op);
}

std::vector<BoundOperand> OperandsOf(const BoundOp& op) {
  std::vector<BoundOperand> operands;
  std::visit(
      [&]<template <class> class Op>(const Op<TensorView>& typed) {
        Op<TensorView>::Visit(typed, [&](const TensorView& view, Access, std::string_view name) {
          operands.push_back({view.data, name});
        });
      },
      op);
  return operands;
}

std::string MovedOperand(const BoundOp& then, const BoundOp& now) {
  MR_CHECK_EQ(then.index(), now.index(), "bindings of two different ops");
  const std::vector<BoundOperand> before = OperandsOf(then), after = OperandsOf(now);
  for (size_t i = 0; i < after.size(); ++i)
    if (after[i].data != before[i].data)
      return fmt::format("operand {} was captured at {} and is now at {}", after[i].name,
                         static_cast<const void*>(before[i].data),
                         static_cast<const void*>(after[i].data));
  return "";
}

namespace {

struct Runner {
  const KernelTable& kernels;
  const CommSet& comms;
  KernelCounters& counters;
  StreamId id;
  Stream& stream;

  Communicator& Over(AxisSet axes) const { return comms.Of({axes, id}); }

  template <class Op>
  void operator()(const Op& op) const {
    Count(op);
    kernels(op, stream);
  }
  void operator()(const AllGatherOp<TensorView>& op) const {
    Communicator& comm = Over(op.axes);
    TensorView shard = op.shard;
    if (!shard) {  // in place: this rank's slice of the result
      const int64_t n = op.full.numel() / comm.world_size();
      shard = {op.full.data + comm.rank() * n * Bytes(op.full.dtype()),
               DenseLayout(op.full.dtype(), {n})};
    }
    if (shard.dtype() != op.full.dtype()) counters.cast_bytes += shard.bytes();
    comm.AllGather(shard, op.full, op.scratch, stream);
  }
  void operator()(const ReduceScatterOp<TensorView>& op) const {
    Over(op.axes).ReduceScatterSum(op.full, op.shard, op.scratch, stream);
  }
  void operator()(const AllReduceOp<TensorView>& op) const {
    Over(op.axes).AllReduceSum(op.buffer, op.scratch, stream);
  }
  void operator()(const AllToAllOp<TensorView>& op) const {
    Over(op.axes).AllToAll(op.sent, op.received, {op.counts, op.row_numel}, stream);
  }

 private:
  template <class Op>
  void Count(const Op&) const {}
  void Count(const MatmulOp<TensorView>& op) const {
    counters.concatenated_bytes += op.staged_bytes;
  }
  void Count(const ConcatOp<TensorView>& op) const { counters.concatenated_bytes += op.x.bytes(); }
  void Count(const CastOp<TensorView>& op) const { counters.cast_bytes += op.x.bytes(); }
  void Count(const AccumulateOp<TensorView>& op) const { counters.copied_bytes += op.x.bytes(); }
  void Count(const TurnOp<TensorView>& op) const { counters.copied_bytes += op.payload.bytes(); }
  void Count(const ShardQuantizeOp<TensorView>& op) const {
    counters.cast_bytes += op.master.bytes();
  }
};

}  // namespace

void RunOp(const BoundOp& op, const KernelTable& kernels, const CommSet& comms,
           KernelCounters& counters, StreamId id, Stream& stream) {
  std::visit(Runner{kernels, comms, counters, id, stream}, op);
}

}  // namespace millrace
