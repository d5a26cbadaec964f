#include "kernels/cuda/mamba/mamba.h"
#include "kernels/cuda/mamba/mamba_launch.h"
#include "kernels/cuda/views.h"
#include "kernels/ops/cuda_ssd.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using namespace cuda;

// Groups begin where a pack does.
Rows GroupsOf(Rows rows, const GatedNormArgs& args) {
  rows.wide = rows.wide && (args.groups == 1 || args.columns % kPack == 0);
  return rows;
}

template <class Op>
GatedNormArgs ArgsOf(const Op& op) {
  GatedNormArgs args;
  const int64_t all = op.y.dim(1), groups = op.rstd.dim(1);
  MR_CHECK(groups > 0 && all % groups == 0 && all < (int64_t{1} << 30),
           "gated_norm: {} columns in {} groups", all, groups);
  args.rows = op.y.dim(0);
  args.groups = static_cast<int>(groups);
  args.columns = static_cast<int>(all / groups);
  args.y = GroupsOf(RowsOf(op.y, "y"), args);
  args.z = GroupsOf(RowsOf(op.z, args.rows, all, "z"), args);
  args.weight = GroupsOf(ColumnsOf(op.weight, all, "weight"), args);
  args.rstd = FloatsOf(op.rstd, args.rows * groups, "rstd");
  return args;
}

void Zero(const TensorView& view, Stream& stream) {
  const Rows rows = RowsOf(view, "rest");
  if (view.numel() == 0) return;
  const size_t element = rows.bf16 ? 2 : 4, width = static_cast<size_t>(view.dim(1)) * element;
  const size_t pitch = view.dim(0) > 1 ? static_cast<size_t>(rows.stride) * element : width;
  MR_CUDA(cudaMemset2DAsync(rows.data, pitch, 0, width, static_cast<size_t>(view.dim(0)),
                            LaunchOn(stream).stream));
}

}  // namespace

void CudaGatedNorm(const GatedNormOp<TensorView>& op, Stream& stream) {
  GatedNormArgs args = ArgsOf(op);
  args.eps = op.eps;
  args.out = GroupsOf(RowsOf(op.out, args.rows, op.y.dim(1), "out"), args);
  LaunchGatedNorm(args, ElementsOf({args.y, args.z, args.out}), LaunchOn(stream));
}

void CudaGatedNormGrad(const GatedNormGradOp<TensorView>& op, Stream& stream) {
  GatedNormArgs args = ArgsOf(op);
  const int64_t all = op.y.dim(1);
  args.out = GroupsOf(RowsOf(op.d_out, args.rows, all, "d_out"), args);
  args.d_y = GroupsOf(RowsOf(op.d_y, args.rows, all, "d_y"), args);
  args.d_z = GroupsOf(RowsOf(op.d_z, args.rows, all, "d_z"), args);
  args.d_weight = ColumnsOf(op.d_weight, all, "d_weight");
  args.add_weight = op.weight_update == Update::kAccumulate;
  args.partials =
      reinterpret_cast<float*>(ScratchOf(op.scratch, GatedNormGradBytes(all), "gated_norm_grad"));
  LaunchGatedNormGrad(args, ElementsOf({args.y, args.z, args.out, args.d_y, args.d_z}),
                      LaunchOn(stream));
  if (op.rest) Zero(op.rest, stream);
}

}  // namespace millrace
