#include "kernels/cuda/moe/expert_activation.h"

#include <limits>

#include "kernels/cuda/moe/expert_activation_launch.h"
#include "kernels/cuda/views.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using namespace cuda;

// The second half of a gated row starts F elements into it.
Rows WideOf(const TensorView& view, int64_t columns, ActivationKind kind, const char* name) {
  Rows rows = RowsOf(view, name);
  if (IsGated(kind)) rows.wide = rows.wide && columns % (rows.bf16 ? 8 : 4) == 0;
  return rows;
}

ExpertActivationArgs ArgsOf(const TensorView& x, const TensorView& narrow,
                            const TensorView& weights, const TensorView& offsets,
                            ActivationKind kind) {
  const int64_t slots = narrow.dim(0), columns = narrow.dim(1);
  MR_CHECK(x.dim(0) == slots && x.dim(1) == (IsGated(kind) ? 2 : 1) * columns &&
               slots <= std::numeric_limits<int32_t>::max(),
           "expert_activation: {} for {}", ToString(x.layout), ToString(narrow.layout));
  ExpertActivationArgs args;
  args.x = WideOf(x, columns, kind, "x");
  args.weights = FloatsOf(weights, slots, "weights");
  args.live = IntsOf(offsets, offsets.numel(), "offsets") + offsets.numel() - 1;
  args.slots = slots;
  args.columns = static_cast<int>(columns);
  return args;
}

}  // namespace

void CudaExpertActivation(const ExpertActivationOp<TensorView>& op, Stream& stream) {
  ExpertActivationArgs args = ArgsOf(op.x, op.out, op.weights, op.offsets, op.kind);
  args.out = RowsOf(op.out, "out");
  LaunchExpertActivation(args, op.kind, LaunchOn(stream));
}

void CudaExpertActivationGrad(const ExpertActivationGradOp<TensorView>& op, Stream& stream) {
  ExpertActivationArgs args = ArgsOf(op.x, op.d_out, op.weights, op.offsets, op.kind);
  MR_CHECK(op.d_x.dim(0) == op.x.dim(0) && op.d_x.dim(1) == op.x.dim(1),
           "expert_activation_grad: d_x is {}, x {}", ToString(op.d_x.layout),
           ToString(op.x.layout));
  args.d_out = RowsOf(op.d_out, "d_out");
  args.d_x = WideOf(op.d_x, op.d_out.dim(1), op.kind, "d_x");
  args.d_weights = FloatsOf(op.d_weights, args.slots, "d_weights");
  LaunchExpertActivationGrad(args, op.kind, LaunchOn(stream));
}

}  // namespace millrace
