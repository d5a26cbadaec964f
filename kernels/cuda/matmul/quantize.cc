#include "kernels/cuda/matmul/quantize.h"

#include <algorithm>
#include <limits>

#include "kernels/cuda/magnitude.h"
#include "kernels/cuda/matmul/quantize_launch.h"
#include "kernels/cuda/tickets.h"
#include "kernels/cuda/views.h"
#include "kernels/ops/cuda_float8.h"
#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/error.h"
#include "runtime/base/float8.h"

namespace millrace {
namespace {

using namespace cuda;

cuda::Scales ScalesOf(const TensorView& scales) {
  MR_CHECK(scales.dtype() == DType::kF32 && scales.layout.rank == 2, "quantize: scales are {}",
           ToString(scales.layout));
  return {scales.as<float>(), static_cast<int>(scales.dim(0)), static_cast<int>(scales.dim(1)),
          scales.stride(0), scales.stride(1)};
}

// `scales`: its own, or those of the form before.
QuantizedForm FormOf(const QuantizeArgs& args, const TensorView& out, const TensorView& scales) {
  MR_CHECK(IsFloat8(out.dtype()) && out.layout.rank == 2 && out.dim(0) == args.rows &&
               out.dim(1) == args.columns,
           "quantize {} x {} to {}", args.rows, args.columns, ToString(out.layout));
  QuantizedForm form;
  form.data = out.as<uint8_t>();
  form.by_columns = out.stride(1) != 1 && out.dim(1) > 1;
  MR_CHECK(!form.by_columns || out.stride(0) == 1 || out.dim(0) <= 1,
           "quantize to {}: neither stride is 1", ToString(out.layout));
  form.line_stride = out.stride(form.by_columns ? 1 : 0);
  form.wide = reinterpret_cast<uintptr_t>(form.data) % 16 == 0 && form.line_stride % 16 == 0;
  form.scales = ScalesOf(scales);
  const std::optional<ScaleShare> share =
      ScaleShareOf(args.rows, args.columns, scales.dim(0), scales.dim(1));
  MR_CHECK(share.has_value(), "quantize {} x {} with scales {}", args.rows, args.columns,
           ToString(scales.layout));
  form.share = *share;
  return form;
}

}  // namespace

void CudaQuantize(const QuantizeOp<TensorView>& op, Stream& stream) {
  QuantizeArgs args;
  args.x = RowsOf(op.x, "x");
  constexpr int64_t kMost = std::numeric_limits<int>::max() - kScaleBlock;
  MR_CHECK(op.x.dim(0) <= kMost && op.x.dim(1) <= kMost, "quantize {}", ToString(op.x.layout));
  args.rows = static_cast<int>(op.x.dim(0)), args.columns = static_cast<int>(op.x.dim(1));
  if (op.activation) {
    MR_CHECK(CanActivate(*op.activation, op.out.dtype()) &&
                 (!IsGated(*op.activation) || args.columns % 2 == 0),
             "quantize: activation {} of {} to {}", static_cast<int>(*op.activation),
             ToString(op.x.layout), ToString(op.out.layout));
    if (IsGated(*op.activation)) {
      args.columns /= 2;  // the second half of a row starts so many elements into it
      args.x.wide = args.x.wide && args.columns % (args.x.bf16 ? 8 : 4) == 0;
    }
  }
  args.forms[0] = FormOf(args, op.out, op.scales);
  args.largest = LargestOf(op.out.dtype());
  args.powers = op.scale_rounding == ScaleRounding::kPowerOfTwo;
  if (op.turned) {
    MR_CHECK(op.turned.dtype() == op.out.dtype(), "quantize to {} and {}", Name(op.out.dtype()),
             Name(op.turned.dtype()));
    args.forms[1] = FormOf(args, op.turned, op.turned_scales ? op.turned_scales : op.scales);
    if (!op.turned_scales) args.forms[1].scales.data = nullptr;
    MR_CHECK(!op.turned_scales || args.forms[1].share != ScaleShare::kTensor,
             "quantize: one scale of the turned form, beside the other's");
  }
  const Launch launch = LaunchOn(stream);
  const Elements elements = ElementsOf({args.x});
  MR_CHECK(!op.activation || args.forms[0].share != ScaleShare::kTensor || op.x.numel() == 0,
           "quantize an activation by a scale of all");
  MR_CHECK(!op.magnitude || op.scales.numel() == 1, "quantize by a magnitude: scales are {}",
           ToString(op.scales.layout));
  if (op.magnitude && op.x.numel() > 0) {
    args.magnitude = MagnitudeOf(op.magnitude);
  } else if (args.forms[0].share == ScaleShare::kTensor) {
    args.tensor_scale = op.scales.as<float>();
    TensorScaleArgs scale{.x = args.x,
                          .rows = args.rows,
                          .columns = args.columns,
                          .scale = op.scales.as<float>(),
                          .largest = args.largest,
                          .powers = args.powers};
    scale.ticket =
        reinterpret_cast<unsigned*>(AsCuda(stream).device().Attached<Tickets>().Of(op.scales.data));
    LaunchTensorScale(scale, elements, launch);
  }
  if (op.x.numel() > 0 || args.forms[0].share != ScaleShare::kTensor)
    LaunchQuantize(args, elements, op.out.dtype() == DType::kE5M2, op.activation, launch);
}

}  // namespace millrace
