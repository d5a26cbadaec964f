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

int NumberOfColumns(const TensorView& view, int dim) {
  MR_CHECK_LE(view.dim(dim), kMaxNormColumns, "norm: columns of a row on CUDA");
  return static_cast<int>(view.dim(dim));
}

void CheckPartials(const TensorView& partials, int columns) {
  MR_CHECK(partials.dtype() == DType::kF64 && partials.layout.rank == 3 &&
               (partials.dim(1) == 1 || partials.dim(1) == 2) && partials.dim(2) == columns &&
               partials.layout.contiguous(),
           "norm: partials are {}; contiguous f64 of one or two sums of {} columns are expected",
           ToString(partials.layout), columns);
}

}  // namespace

void CudaNorm(const NormOp<TensorView>& op, Stream& stream) {
  NormArgs args;
  args.rows = op.x.dim(0);
  args.columns = NumberOfColumns(op.x, 1);
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
  args.columns = NumberOfColumns(op.x, 1);
  args.per_column = 1.0 / static_cast<double>(std::max(args.columns, 1));
  args.d_out = RowsOf(op.d_out, args.rows, args.columns, "d_out", kF16Too);
  args.x = RowsOf(op.x, "x", kF16Too);
  args.weight = ColumnsOf(op.weight, args.columns, "weight", kF16Too);
  args.d_bypass = RowsOf(op.d_bypass, args.rows, args.columns, "d_bypass", kF16Too);
  args.d_x = RowsOf(op.d_x, args.rows, args.columns, "d_x", kF16Too);
  args.mean = op.kind == NormKind::kLayer ? FloatsOf(op.mean, args.rows, "mean") : nullptr;
  args.rstd = FloatsOf(op.rstd, args.rows, "rstd");
  const Elements elements =
      ElementsOf({args.d_out, args.x, args.d_bypass, args.d_x}, {args.weight});
  args.magnitude = MagnitudeOf(op.magnitude, elements);
  args.shape = NormGradShape(args.columns, IsShort(elements));
  args.blocks = NormGradBlocksFor(args.rows, args.shape);
  CheckPartials(op.partials, args.columns);
  MR_CHECK_EQ(op.partials.dim(0), args.blocks, "norm_grad: blocks of partials");
  args.partials = op.partials.as<double>();
  args.sums = static_cast<int>(op.partials.dim(1));
  LaunchNormGrad(args, elements, LaunchOn(stream));
}

void CudaNormSums(const NormSumsOp<TensorView>& op, Stream& stream) {
  NormSumsArgs args;
  args.columns = NumberOfColumns(op.d_weight, 0);
  CheckPartials(op.partials, args.columns);
  MR_CHECK_LE(op.partials.dim(0), kNormGradBlocks, "norm_sums: blocks of partials on CUDA");
  args.blocks = static_cast<int>(op.partials.dim(0));
  args.sums = static_cast<int>(op.partials.dim(1));
  MR_CHECK_EQ(args.sums, op.d_bias ? 2 : 1, "norm_sums: sums of a block");
  args.partials = op.partials.as<double>();
  args.d_weight = ColumnsOf(op.d_weight, args.columns, "d_weight", kF16Too);
  args.d_bias = ColumnsOf(op.d_bias, args.columns, "d_bias", kF16Too);
  args.add_weight = op.weight_update == Update::kAccumulate;
  args.add_bias = op.bias_update == Update::kAccumulate;
  LaunchNormSums(args, ElementsOf({args.d_weight, args.d_bias}), LaunchOn(stream));
}

}  // namespace millrace
