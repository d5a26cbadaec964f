#include "kernels/cuda/moe/router_bias.h"

#include <algorithm>

#include "kernels/cuda/moe/router_bias_launch.h"
#include "kernels/cuda/views.h"
#include "runtime/base/error.h"

namespace millrace {

using namespace cuda;

void CudaExpertLoad(const ExpertLoadOp<TensorView>& op, Stream& stream) {
  const int64_t experts = op.load.numel();
  MR_CHECK_LE(experts, kMaxExperts, "expert_load: experts");
  ExpertLoadArgs args;
  args.offsets = IntsOf(op.offsets, experts + 1, "offsets");
  args.load = FloatsOf(op.load, experts, "load");
  args.experts = static_cast<int>(experts);
  args.accumulate = op.update == Update::kAccumulate;
  LaunchExpertLoad(args, LaunchOn(stream));
}

void CudaRouterBias(const RouterBiasOp<TensorView>& op, Stream& stream) {
  const int64_t n = op.bias.numel(), first = op.flat_begin.value();
  RouterBiasArgs args;
  args.bias = FloatsOf(op.bias, n, "bias");
  args.load = FloatsOf(op.load, n, "load");
  args.scalars = ScalarsOf(op.scalars);
  args.pairs = op.pairs;
  args.experts = op.experts;
  args.rate = static_cast<float>(op.rate);
  const Launch launch = LaunchOn(stream);
  Ranges own;
  const auto flush = [&] {
    if (own.count > 0) LaunchRouterBias(args, own, launch);
    own.count = 0;
  };
  for (const Range& range : *op.ranges) {
    const Range here{std::max<int64_t>(0, range.begin - first), std::min(n, range.end - first)};
    if (here.begin >= here.end) continue;
    own.of[own.count++] = here;
    if (own.count == kRangesPerLaunch) flush();
  }
  flush();
}

}  // namespace millrace
