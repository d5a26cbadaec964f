#include "kernels/cuda/norm/head_norm.h"

#include <algorithm>
#include <limits>

#include "kernels/cuda/norm/head_norm_launch.h"
#include "kernels/ops/cuda_blocking.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using namespace cuda;

template <class Op>
HeadNormArgs ArgsOf(const Op& op) {
  const int64_t rows = op.x.dim(0), depth = op.q_weight.dim(0), heads = op.heads + 2 * op.kv_heads;
  MR_CHECK_LE(depth, kMaxHeadNormDepth, "head_norm: head dimension on CUDA");
  MR_CHECK_EQ(op.x.dim(1), heads * depth, "head_norm: columns of x");
  MR_CHECK_LE(rows * heads, std::numeric_limits<int32_t>::max(), "head_norm: heads of all rows");
  HeadNormArgs args;
  args.x = RowsOf(op.x, "x", kF16Too);
  args.q_weight = ColumnsOf(op.q_weight, depth, "q_weight", kF16Too);
  args.k_weight = ColumnsOf(op.k_weight, depth, "k_weight", kF16Too);
  args.rstd = FloatsOf(op.rstd, rows * (op.heads + op.kv_heads), "rstd");
  args.turns = static_cast<uint32_t>(rows * heads);
  args.row_heads = Divisor(std::max<int64_t>(heads, 1));
  args.heads = static_cast<int>(op.heads);
  args.kv_heads = static_cast<int>(op.kv_heads);
  args.depth = static_cast<int>(depth);
  return args;
}

}  // namespace

void CudaHeadNorm(const HeadNormOp<TensorView>& op, Stream& stream) {
  HeadNormArgs args = ArgsOf(op);
  args.out = RowsOf(op.out, op.x.dim(0), op.x.dim(1), "out", kF16Too);
  MR_CHECK(op.out.dtype() == op.x.dtype(), "head_norm: x and out have one dtype");
  args.eps = op.eps;
  LaunchHeadNorm(args, LaunchOn(stream));
}

void CudaHeadNormGrad(const HeadNormGradOp<TensorView>& op, Stream& stream) {
  HeadNormArgs args = ArgsOf(op);
  args.d_out = RowsOf(op.d_out, op.x.dim(0), op.x.dim(1), "d_out", kF16Too);
  args.d_x = RowsOf(op.d_x, op.x.dim(0), op.x.dim(1), "d_x", kF16Too);
  MR_CHECK(op.d_out.dtype() == op.d_x.dtype(), "head_norm_grad: d_out and d_x have one dtype");
  args.d_q_weight = ColumnsOf(op.d_q_weight, args.depth, "d_q_weight", kF16Too);
  args.d_k_weight = ColumnsOf(op.d_k_weight, args.depth, "d_k_weight", kF16Too);
  args.partials = reinterpret_cast<double*>(
      ScratchOf(op.scratch, HeadNormGradBytes(args.depth), "head_norm_grad"));
  args.add_q = op.q_update == Update::kAccumulate;
  args.add_k = op.k_update == Update::kAccumulate;
  LaunchHeadNormGrad(args, LaunchOn(stream));
}

}  // namespace millrace
