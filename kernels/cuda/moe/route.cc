#include "kernels/cuda/moe/route.h"

#include <limits>

#include "kernels/cuda/moe/route_launch.h"
#include "kernels/cuda/views.h"
#include "kernels/ops/cuda_blocking.h"
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

// Rows of each of the groups that the first dim of `of` counts.
int GroupRows(const TensorView& of, int rows) {
  const int64_t groups = of.dim(0);
  MR_CHECK(groups >= 1 && rows % groups == 0, "route: {} rows in {} groups", rows, groups);
  return static_cast<int>(rows / groups);
}

}  // namespace

void CudaRoute(const RouteOp<TensorView>& op, Stream& stream) {
  RouteArgs args = ArgsOf(op, op.logits, op.ids);
  args.bias = FloatsOf(op.bias, args.experts, "bias");
  args.weights = FloatsOf(op.weights, op.ids.numel(), "weights");
  if (op.gate == GateKind::kBalanced)
    args.balanced_stride = static_cast<int>(BalancedStride(args.experts, args.top_k));
  LaunchRoute(args, LaunchOn(stream));
}

void CudaRouteGrad(const RouteGradOp<TensorView>& op, Stream& stream) {
  RouteArgs args = ArgsOf(op, op.logits, op.ids);
  args.d_weights = FloatsOf(op.d_weights, op.ids.numel(), "d_weights");
  args.d_logits = RowsOf(op.d_logits, args.rows, args.experts, "d_logits");
  if (op.balance) {
    args.group_rows = GroupRows(op.balance, args.rows);
    args.balance = FloatsOf(op.balance, op.balance.dim(0) * args.experts, "balance");
  }
  LaunchRouteGrad(args, LaunchOn(stream));
}

void CudaRouterStats(const RouterStatsOp<TensorView>& op, Stream& stream) {
  RouterStatsArgs args;
  args.route = ArgsOf({.score = op.score}, op.logits, op.ids);
  args.route.group_rows = GroupRows(op.stats, args.route.rows);
  const int64_t groups = op.stats.dim(0), experts = args.route.experts;
  args.stats = FloatsOf(op.stats, groups * 2 * experts, "stats");
  args.groups = static_cast<int>(groups);
  args.tiles = static_cast<int>(CeilDiv(args.route.rows / groups, kRouterTile));
  args.accumulate = op.update == Update::kAccumulate;
  args.partials = reinterpret_cast<float*>(
      ScratchOf(op.scratch, RouterStatsBytes(args.route.rows, groups, experts), "router_stats"));
  LaunchRouterStats(args, LaunchOn(stream));
}

void CudaRouterBalance(const RouterBalanceOp<TensorView>& op, Stream& stream) {
  const int64_t groups = op.stats.dim(0), experts = op.stats.dim(2);
  RouterBalanceArgs args;
  args.stats = FloatsOf(op.stats, groups * 2 * experts, "stats");
  args.balance = FloatsOf(op.balance, groups * experts, "balance");
  args.loss_sum = DoublesOf(op.loss_sum, 1, "loss_sum");
  args.scalars = ScalarsOf(op.scalars);
  args.loss_factor = static_cast<double>(op.rows) * op.factor;
  args.slope_factor = op.loss_weight * static_cast<double>(op.tokens) * op.factor;
  args.groups = static_cast<int>(groups);
  args.experts = static_cast<int>(experts);
  args.accumulate = op.loss_update == Update::kAccumulate;
  LaunchRouterBalance(args, LaunchOn(stream));
}

}  // namespace millrace
