#include "kernels/cuda/norm/norm.h"

#include <algorithm>

#include "kernels/cuda/magnitude.h"
#include "kernels/cuda/norm/norm_launch.h"
#include "kernels/cuda/views.h"
#include "kernels/ops/cuda_blocking.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using namespace cuda;

int NumberOfColumns(const TensorView& x) {
  MR_CHECK_LE(x.dim(1), kMaxNormColumns, "norm: columns of a row on CUDA");
  return static_cast<int>(x.dim(1));
}

}  // namespace

void CudaNorm(const NormOp<TensorView>& op, Stream& stream) {
  NormArgs args;
  args.rows = op.x.dim(0);
  args.columns = NumberOfColumns(op.x);
  args.per_column = 1.0 / static_cast<double>(std::max(args.columns, 1));
  MR_CHECK_EQ(static_cast<bool>(op.residual), static_cast<bool>(op.sum),
              "norm: is there a residual, and a place for the sum");
  args.x = RowsOf(op.x, "x", kF16Too);
  args.residual = RowsOf(op.residual, args.rows, args.columns, "residual", kF16Too);
  args.weight = ColumnsOf(op.weight, args.columns, "weight", kF16Too);
  args.bias = ColumnsOf(op.bias, args.columns, "bias", kF16Too);
  args.sum = RowsOf(op.sum, args.rows, args.columns, "sum", kF16Too);
  args.out = RowsOf(op.out, args.rows, args.columns, "out", kF16Too);
  args.mean = FloatsOf(op.mean, args.rows, "mean");
  args.rstd = FloatsOf(op.rstd, args.rows, "rstd");
  const Elements elements =
      ElementsOf({args.x, args.residual, args.sum, args.out}, {args.weight, args.bias});
  args.magnitude = MagnitudeOf(op.magnitude, elements);
  args.shape = RowShapeOf(args.columns, kNormPacks);
  args.eps = op.eps;
  args.layer = op.kind == NormKind::kLayer;
  LaunchNorm(args, elements, LaunchOn(stream));
}

void CudaNormGrad(const NormGradOp<TensorView>& op, Stream& stream) {
  NormGradArgs args;
  args.rows = op.x.dim(0);
  args.columns = NumberOfColumns(op.x);
  args.per_column = 1.0 / static_cast<double>(std::max(args.columns, 1));
  args.d_out = RowsOf(op.d_out, args.rows, args.columns, "d_out", kF16Too);
  args.x = RowsOf(op.x, "x", kF16Too);
  args.weight = ColumnsOf(op.weight, args.columns, "weight", kF16Too);
  args.d_bypass = RowsOf(op.d_bypass, args.rows, args.columns, "d_bypass", kF16Too);
  args.d_x = RowsOf(op.d_x, args.rows, args.columns, "d_x", kF16Too);
  args.d_weight = ColumnsOf(op.d_weight, args.columns, "d_weight", kF16Too);
  args.d_bias = ColumnsOf(op.d_bias, args.columns, "d_bias", kF16Too);
  args.mean = op.kind == NormKind::kLayer ? FloatsOf(op.mean, args.rows, "mean") : nullptr;
  args.rstd = FloatsOf(op.rstd, args.rows, "rstd");
  args.partials =
      reinterpret_cast<double*>(ScratchOf(op.scratch, NormGradBytes(args.columns), "norm_grad"));
  const Elements elements = ElementsOf({args.d_out, args.x, args.d_bypass, args.d_x},
                                       {args.weight, args.d_weight, args.d_bias});
  args.magnitude = MagnitudeOf(op.magnitude, elements);
  args.shape = RowShapeOf(args.columns, IsShort(elements) ? kNormGradPacks : kNormGradPacksF32);
  args.blocks = NormGradBlocksFor(args.rows, args.shape);
  args.add_weight = op.weight_update == Update::kAccumulate;
  args.add_bias = op.bias_update == Update::kAccumulate;
  LaunchNormGrad(args, elements, LaunchOn(stream));
}

}  // namespace millrace
