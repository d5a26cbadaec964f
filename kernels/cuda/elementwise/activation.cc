#include "kernels/cuda/elementwise/activation.h"

#include <limits>

#include "kernels/cuda/elementwise/activation_launch.h"
#include "kernels/cuda/magnitude.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using namespace cuda;

// `wide` is [R,F] or, for swiglu, [R,2F]; `narrow` is [R,F].
void CheckShapes(const TensorView& wide, const TensorView& narrow, ActivationKind kind) {
  const int64_t times = IsGated(kind) ? 2 : 1;
  MR_CHECK(wide.dim(0) == narrow.dim(0) && wide.dim(1) == times * narrow.dim(1),
           "activation: {} for {}", ToString(wide.layout), ToString(narrow.layout));
}

ActivationArgs ArgsOf(const TensorView& narrow, ActivationKind kind) {
  const int64_t row_packs = Packs(narrow.dim(1)), packs = narrow.dim(0) * row_packs;
  MR_CHECK_LE(packs, std::numeric_limits<int32_t>::max(), "activation: packs of eight elements");
  ActivationArgs args;
  args.packs = static_cast<uint32_t>(packs);
  args.row_packs = Divisor(row_packs > 0 ? row_packs : 1);
  args.columns = static_cast<int>(narrow.dim(1));
  args.kind = kind;
  return args;
}

}  // namespace

void CudaActivation(const ActivationOp<TensorView>& op, Stream& stream) {
  CheckShapes(op.x, op.out, op.kind);
  ActivationArgs args = ArgsOf(op.out, op.kind);
  args.x = RowsOf(op.x, "x", kF16Too);
  args.out = RowsOf(op.out, "out", kF16Too);
  const Elements elements = ElementsOf({args.x, args.out});
  args.magnitude = MagnitudeOf(op.magnitude, elements);
  LaunchActivation(args, elements, LaunchOn(stream));
}

void CudaActivationGrad(const ActivationGradOp<TensorView>& op, Stream& stream) {
  CheckShapes(op.x, op.d_out, op.kind);
  CheckShapes(op.d_x, op.d_out, op.kind);
  ActivationArgs args = ArgsOf(op.d_out, op.kind);
  args.x = RowsOf(op.x, "x", kF16Too);
  args.d_out = RowsOf(op.d_out, "d_out", kF16Too);
  args.d_x = RowsOf(op.d_x, "d_x", kF16Too);
  const Elements elements = ElementsOf({args.x, args.d_out, args.d_x});
  args.magnitude = MagnitudeOf(op.magnitude, elements);
  LaunchActivationGrad(args, elements, LaunchOn(stream));
}

}  // namespace millrace
