#include <limits>

#include "kernels/cuda/mamba/mamba.h"
#include "kernels/cuda/mamba/mamba_launch.h"
#include "kernels/cuda/views.h"
#include "kernels/ops/cuda_ssd.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using namespace cuda;

int Int(int64_t n, const char* name) {
  MR_CHECK_LE(n, std::numeric_limits<int32_t>::max() / 2, "mamba_conv: {} on CUDA", name);
  return static_cast<int>(n);
}

// A dense view of any rank, as one row.
Rows DenseOf(const TensorView& view, int64_t n, const char* name) {
  MR_CHECK_EQ(view.numel(), n, "mamba_conv: elements of {}", name);
  return FlatOf(view, name);
}

template <class Op>
ConvArgs ArgsOf(const Op& op) {
  ConvArgs args;
  args.batch = Int(op.x.dim(0), "sequences");
  args.length = Int(op.x.dim(1), "positions");
  args.channels = Int(op.x.dim(2), "channels");
  args.heads = Int(op.dt_raw.dim(2), "heads");
  args.width = Int(op.weight.dim(1), "taps");
  MR_CHECK(args.width >= 1 && args.width <= 4, "mamba_conv: {} taps; 1 to 4 are allowed on CUDA",
           args.width);
  args.x = SequenceOf(op.x, "x");
  args.dt_raw = SequenceOf(op.dt_raw, "dt_raw");
  args.weight = DenseOf(op.weight, op.x.dim(2) * op.weight.dim(1), "weight");
  args.bias = DenseOf(op.bias, op.x.dim(2), "bias");
  args.dt_bias = DenseOf(op.dt_bias, op.dt_raw.dim(2), "dt_bias");
  args.dt_min = op.dt_min, args.dt_max = op.dt_max;
  return args;
}

}  // namespace

void CudaMambaConv(const MambaConvOp<TensorView>& op, Stream& stream) {
  MR_CHECK(!op.documents, "mamba_conv: documents");  // WhyUnsupported
  ConvArgs args = ArgsOf(op);
  args.out = SequenceOf(op.out, "out");
  args.bf16 = args.x.rows.bf16 && args.out.rows.bf16;
  args.dt = FloatsOf(op.dt, op.dt_raw.numel(), "dt");
  LaunchConv(args, LaunchOn(stream));
}

void CudaMambaConvGrad(const MambaConvGradOp<TensorView>& op, Stream& stream) {
  MR_CHECK(!op.documents, "mamba_conv: documents");  // WhyUnsupported
  ConvArgs args = ArgsOf(op);
  args.out = SequenceOf(op.d_out, "d_out");
  args.dt = FloatsOf(op.d_dt, op.dt_raw.numel(), "d_dt");
  args.d_x = SequenceOf(op.d_x, "d_x");
  args.bf16 = args.x.rows.bf16 && args.out.rows.bf16 && args.d_x.rows.bf16;
  args.d_dt_raw = SequenceOf(op.d_dt_raw, "d_dt_raw");
  args.d_weight = FlatOf(op.d_weight, "d_weight");
  args.d_bias = FlatOf(op.d_bias, "d_bias");
  args.d_dt_bias = FlatOf(op.d_dt_bias, "d_dt_bias");
  args.add_weight = op.weight_update == Update::kAccumulate;
  args.add_bias = op.bias_update == Update::kAccumulate;
  args.add_dt_bias = op.dt_bias_update == Update::kAccumulate;
  const int64_t sums = op.x.dim(2) * (op.weight.dim(1) + 1) + op.dt_raw.dim(2),
                bytes = MambaConvGradBytes(op.x.dim(0), op.x.dim(1), sums);
  if (bytes > 0)
    args.partials = reinterpret_cast<float*>(ScratchOf(op.scratch, bytes, "mamba_conv_grad"));
  LaunchConvGrad(args, LaunchOn(stream));
}

}  // namespace millrace
