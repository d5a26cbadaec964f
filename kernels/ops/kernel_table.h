// The border between plans and devices: one table of functions per backend. kernels/cpu fills every
// entry and is the reference; kernels/cuda fills those that Lower may choose for it.
//
// Streams  An entry enqueues on `stream` and returns; operands are touched in stream order. A host
//          stream has run the op on return.
// Errors   Plans are checked before they run; an entry that is given what its op does not allow
//          throws Error(kInternal) naming both values.
// Threads  Entries may be called from several threads at once on disjoint operands (ranks as
//          threads); they keep no state.
#pragma once

#include "kernels/ops/model_ops.h"
#include "kernels/ops/step_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

template <template <class> class Op>
using KernelFn = void (*)(const Op<TensorView>&, Stream&);

struct KernelTable {
  KernelFn<EmbedOp> embed = nullptr;
  KernelFn<EmbedGradOp> embed_grad = nullptr;
  KernelFn<NormOp> norm = nullptr;
  KernelFn<NormGradOp> norm_grad = nullptr;
  KernelFn<MatmulOp> matmul = nullptr;
  KernelFn<ColumnSumOp> column_sum = nullptr;
  KernelFn<RopeTableOp> rope_table = nullptr;
  KernelFn<RopeOp> rope = nullptr;
  KernelFn<AttentionOp> attention = nullptr;
  KernelFn<AttentionGradOp> attention_grad = nullptr;
  KernelFn<AddOp> add = nullptr;
  KernelFn<ActivationOp> activation = nullptr;
  KernelFn<ActivationGradOp> activation_grad = nullptr;
  KernelFn<CrossEntropyOp> cross_entropy = nullptr;
  KernelFn<SelectRowOp> select_row = nullptr;
  KernelFn<CastOp> cast = nullptr;
  KernelFn<ConcatOp> concat = nullptr;
  KernelFn<AccumulateOp> accumulate = nullptr;
  KernelFn<ZeroRangesOp> zero_ranges = nullptr;
  KernelFn<FiniteScanOp> finite_scan = nullptr;
  KernelFn<SumSquaresOp> sum_squares = nullptr;
  KernelFn<BeginStepOp> begin_step = nullptr;
  KernelFn<StepStatsOp> step_stats = nullptr;
  KernelFn<AdamWOp> adamw = nullptr;
};

}  // namespace millrace
