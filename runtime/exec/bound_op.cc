#include "runtime/exec/bound_op.h"

#include <vector>

#include "runtime/base/error.h"

namespace millrace {

TensorView BindView(const Binding& binding, const View& view, int64_t position, int microbatch) {
  if (!view) return {};
  const RankInt first(view.offset, view.rank_stride, view.rank_axes);
  const int64_t element =
      first.At(binding.mesh, binding.rank) + microbatch * view.microbatch_stride;
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

std::string MovedOperand(const BoundOp& then, const BoundOp& now) {
  MR_CHECK_EQ(then.index(), now.index(), "bindings of two different ops");
  std::vector<std::byte*> before;
  const auto visit = [](const BoundOp& op, auto&& f) {
    std::visit([&]<template <class> class Op>(
                   const Op<TensorView>& typed) { Op<TensorView>::Visit(typed, f); },
               op);
  };
  visit(then,
        [&](const TensorView& view, Access, std::string_view) { before.push_back(view.data); });
  std::string moved;
  size_t i = 0;
  visit(now, [&](const TensorView& view, Access, std::string_view name) {
    if (view.data != before[i] && moved.empty())
      moved = fmt::format("operand {} was captured at {} and is now at {}", name,
                          static_cast<const void*>(before[i]), static_cast<const void*>(view.data));
    ++i;
  });
  return moved;
}

namespace {

struct Runner {
  const KernelTable& kernels;
  const CommSet& comms;
  KernelCounters& counters;
  StreamId id;
  Stream& stream;

  Communicator& Over(AxisSet axes) const { return comms.Of({axes, id}); }

  void operator()(const EmbedOp<TensorView>& op) const { kernels.embed(op, stream); }
  void operator()(const EmbedGradOp<TensorView>& op) const { kernels.embed_grad(op, stream); }
  void operator()(const NormOp<TensorView>& op) const { kernels.norm(op, stream); }
  void operator()(const NormGradOp<TensorView>& op) const { kernels.norm_grad(op, stream); }
  void operator()(const MatmulOp<TensorView>& op) const {
    counters.concatenated_bytes += op.staged_bytes;
    kernels.matmul(op, stream);
  }
  void operator()(const ColumnSumOp<TensorView>& op) const { kernels.column_sum(op, stream); }
  void operator()(const RopeTableOp<TensorView>& op) const { kernels.rope_table(op, stream); }
  void operator()(const RopeOp<TensorView>& op) const { kernels.rope(op, stream); }
  void operator()(const AttentionOp<TensorView>& op) const { kernels.attention(op, stream); }
  void operator()(const AttentionGradOp<TensorView>& op) const {
    kernels.attention_grad(op, stream);
  }
  void operator()(const AddOp<TensorView>& op) const { kernels.add(op, stream); }
  void operator()(const ActivationOp<TensorView>& op) const { kernels.activation(op, stream); }
  void operator()(const ActivationGradOp<TensorView>& op) const {
    kernels.activation_grad(op, stream);
  }
  void operator()(const CrossEntropyOp<TensorView>& op) const { kernels.cross_entropy(op, stream); }
  void operator()(const SelectRowOp<TensorView>& op) const { kernels.select_row(op, stream); }
  void operator()(const CastOp<TensorView>& op) const {
    counters.cast_bytes += op.x.bytes();
    kernels.cast(op, stream);
  }
  void operator()(const ConcatOp<TensorView>& op) const {
    counters.concatenated_bytes += op.x.bytes();
    kernels.concat(op, stream);
  }
  void operator()(const AccumulateOp<TensorView>& op) const {
    counters.copied_bytes += op.x.bytes();
    kernels.accumulate(op, stream);
  }
  void operator()(const ZeroRangesOp<TensorView>& op) const { kernels.zero_ranges(op, stream); }
  void operator()(const FiniteScanOp<TensorView>& op) const { kernels.finite_scan(op, stream); }
  void operator()(const SumSquaresOp<TensorView>& op) const { kernels.sum_squares(op, stream); }
  void operator()(const BeginStepOp<TensorView>& op) const { kernels.begin_step(op, stream); }
  void operator()(const StepStatsOp<TensorView>& op) const { kernels.step_stats(op, stream); }
  void operator()(const AdamWOp<TensorView>& op) const { kernels.adamw(op, stream); }
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
};

}  // namespace

void RunOp(const BoundOp& op, const KernelTable& kernels, const CommSet& comms,
           KernelCounters& counters, StreamId id, Stream& stream) {
  std::visit(Runner{kernels, comms, counters, id, stream}, op);
}

}  // namespace millrace
