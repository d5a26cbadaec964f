#include "kernels/cuda/moe/route.h"

#include <limits>

#include "kernels/cuda/moe/route_launch.h"
#include "kernels/cuda/views.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using namespace cuda;

RouteArgs ArgsOf(const RouteAttrs& attrs, const TensorView& logits, const TensorView& ids) {
  const int64_t rows = logits.dim(0), experts = logits.dim(1), top_k = ids.dim(1);
  MR_CHECK(experts >= 1 && experts <= kMaxExperts && top_k >= 1 && top_k <= kMaxTopK &&
               rows <= std::numeric_limits<int32_t>::max() && attrs.groups >= 1 &&
               experts % attrs.groups == 0 && attrs.top_groups >= 1 &&
               attrs.top_groups <= attrs.groups &&
               top_k <= experts / attrs.groups * attrs.top_groups,
           "route: {} rows, {} of {} experts in {} of {} groups", rows, top_k, experts,
           attrs.top_groups, attrs.groups);
  RouteArgs args;
  args.logits = FloatsOf(logits, rows * experts, "logits");
  args.ids = IntsOf(ids, rows * top_k, "ids");
  args.rows = static_cast<int>(rows);
  args.experts = static_cast<int>(experts);
  args.top_k = static_cast<int>(top_k);
  args.groups = static_cast<int>(attrs.groups);
  args.top_groups = static_cast<int>(attrs.top_groups);
  args.sigmoid = attrs.score == RouterKind::kSigmoid;
  args.normalise = attrs.normalise;
  args.scaling = static_cast<float>(attrs.scaling);
  return args;
}

}  // namespace

void CudaRoute(const RouteOp<TensorView>& op, Stream& stream) {
  RouteArgs args = ArgsOf(op, op.logits, op.ids);
  args.bias = FloatsOf(op.bias, args.experts, "bias");
  args.weights = FloatsOf(op.weights, op.ids.numel(), "weights");
  LaunchRoute(args, LaunchOn(stream));
}

void CudaRouteGrad(const RouteGradOp<TensorView>& op, Stream& stream) {
  RouteArgs args = ArgsOf(op, op.logits, op.ids);
  args.d_weights = FloatsOf(op.d_weights, op.ids.numel(), "d_weights");
  args.d_logits = RowsOf(op.d_logits, args.rows, args.experts, "d_logits");
  LaunchRouteGrad(args, LaunchOn(stream));
}

}  // namespace millrace
