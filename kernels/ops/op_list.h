// The list of all ops, once. What a plan holds (KernelOp), what an executor issues (BoundOp), the
// kernel table and each backend's filling of it are derived from it.
//
// An op is added by four things: its struct (in a file included below), its line here, its kernel
// in kernels/cpu and kernels/cuda, and its cost (cost.h). Without a kernel nothing compiles.
#pragma once

#include <variant>

#include "kernels/ops/attention_ops.h"
#include "kernels/ops/cache_ops.h"
#include "kernels/ops/expert_exchange_ops.h"
#include "kernels/ops/fp8_flat_ops.h"
#include "kernels/ops/fp8_ops.h"
#include "kernels/ops/loss_ops.h"
#include "kernels/ops/mamba_ops.h"
#include "kernels/ops/model_ops.h"
#include "kernels/ops/moe_ops.h"
#include "kernels/ops/muon_ops.h"
#include "kernels/ops/router_ops.h"
#include "kernels/ops/row_linear_ops.h"
#include "kernels/ops/sample_ops.h"
#include "kernels/ops/step_ops.h"

// OP(Name, entry): NameOp, run by the entry `entry` of the kernel table, which is cpu::Name on the
// CPU and CudaName on CUDA.
#define MILLRACE_KERNEL_OPS(OP)                    \
  OP(TakeInput, take_input)                        \
  OP(Embed, embed)                                 \
  OP(EmbedGrad, embed_grad)                        \
  OP(Norm, norm)                                   \
  OP(NormGrad, norm_grad)                          \
  OP(NormSums, norm_sums)                          \
  OP(HeadNorm, head_norm)                          \
  OP(HeadNormGrad, head_norm_grad)                 \
  OP(Quantize, quantize)                           \
  OP(Turn, turn)                                   \
  OP(Matmul, matmul)                               \
  OP(BatchedMatmul, batched_matmul)                \
  OP(ColumnSum, column_sum)                        \
  OP(RopeTable, rope_table)                        \
  OP(Rope, rope)                                   \
  OP(Attention, attention)                         \
  OP(AttentionGrad, attention_grad)                \
  OP(Add, add)                                     \
  OP(AddBias, add_bias)                            \
  OP(CopyRows, copy_rows)                          \
  OP(JoinColumns, join_columns)                    \
  OP(Activation, activation)                       \
  OP(ActivationGrad, activation_grad)              \
  OP(Route, route)                                 \
  OP(RouteGrad, route_grad)                        \
  OP(RouterStats, router_stats)                    \
  OP(RouterBalance, router_balance)                \
  OP(ExpertLoad, expert_load)                      \
  OP(ExpertSlots, expert_slots)                    \
  OP(Dispatch, dispatch)                           \
  OP(Combine, combine)                             \
  OP(ExpertPieces, expert_pieces)                  \
  OP(ReceivedSlots, received_slots)                \
  OP(GroupedMatmul, grouped_matmul)                \
  OP(GroupedWeightGrad, grouped_weight_grad)       \
  OP(ExpertActivation, expert_activation)          \
  OP(ExpertActivationGrad, expert_activation_grad) \
  OP(MambaConv, mamba_conv)                        \
  OP(MambaConvGrad, mamba_conv_grad)               \
  OP(SsdScan, ssd_scan)                            \
  OP(SsdScanGrad, ssd_scan_grad)                   \
  OP(GatedNorm, gated_norm)                        \
  OP(GatedNormGrad, gated_norm_grad)               \
  OP(CrossEntropy, cross_entropy)                  \
  OP(SelectRow, select_row)                        \
  OP(Sample, sample)                               \
  OP(ClearCache, clear_cache)                      \
  OP(KeepRange, keep_range)                        \
  OP(EmbedRows, embed_rows)                        \
  OP(RopeRows, rope_rows)                          \
  OP(RowLinear, row_linear)                        \
  OP(CachedAttention, cached_attention)            \
  OP(MambaConvRows, mamba_conv_rows)               \
  OP(SsdScanRows, ssd_scan_rows)                   \
  OP(Cast, cast)                                   \
  OP(Concat, concat)                               \
  OP(Accumulate, accumulate)                       \
  OP(ZeroRanges, zero_ranges)                      \
  OP(FiniteScan, finite_scan)                      \
  OP(SumSquares, sum_squares)                      \
  OP(BeginStep, begin_step)                        \
  OP(StepStats, step_stats)                        \
  OP(AdamW, adamw)                                 \
  OP(MuonMomentum, muon_momentum)                  \
  OP(MuonNormalise, muon_normalise)                \
  OP(MuonUpdate, muon_update)                      \
  OP(RouterBias, router_bias)                      \
  OP(ShardMagnitudes, shard_magnitudes)            \
  OP(FlatScales, flat_scales)                      \
  OP(ShardQuantize, shard_quantize)

// OP(Name): NameOp, run by a communicator.
#define MILLRACE_COLLECTIVE_OPS(OP) \
  OP(AllGather)                     \
  OP(ReduceScatter)                 \
  OP(AllReduce)                     \
  OP(AllToAll)

namespace millrace {

namespace internal {

// `First` takes what stands before the first comma of a list written by the macros.
template <class First, template <class> class... Ops>
struct OpListOf {
  template <class V>
  using Variant = std::variant<Ops<V>...>;
};

#define MILLRACE_LISTED(Name, ...) , Name##Op
using OpList =
    OpListOf<void MILLRACE_KERNEL_OPS(MILLRACE_LISTED) MILLRACE_COLLECTIVE_OPS(MILLRACE_LISTED)>;
#undef MILLRACE_LISTED

}  // namespace internal

// Any one op, over views V. Used like the variant that it is. A class of its own, so that making,
// copying, moving and destroying the alternatives is compiled once for each V, in the source that
// includes any_op.h, and not in each that holds an op: that was a quarter of its compile time.
template <class V>
class AnyOp : public internal::OpList::Variant<V> {
 public:
  using Alternatives = internal::OpList::Variant<V>;

  template <template <class> class Op>
  AnyOp(Op<V> op);  // any of the list
  AnyOp();
  AnyOp(const AnyOp&);
  AnyOp(AnyOp&&) noexcept;
  AnyOp& operator=(const AnyOp&);
  AnyOp& operator=(AnyOp&&) noexcept;
  ~AnyOp();
};

}  // namespace millrace
