#include "kernels/cuda/step/update.h"

#include <algorithm>

#include "kernels/cuda/step/update_launch.h"
#include "runtime/base/error.h"

namespace millrace {

using namespace cuda;

void CudaBeginStep(const BeginStepOp<TensorView>& op, Stream& stream) {
  LaunchBeginStep(ScalarsOf(op.scalars), op.schedule, LaunchOn(stream));
}

void CudaAdamW(const AdamWOp<TensorView>& op, Stream& stream) {
  const int64_t n = op.master.numel();
  for (const auto& [view, name] : {std::pair{&op.master, "master"}, {&op.m, "m"}, {&op.v, "v"}})
    MR_CHECK(view->dtype() == DType::kF32 && view->numel() == n, "adamw: {} is {}, master is {}",
             name, ToString(view->layout), ToString(op.master.layout));
  MR_CHECK_EQ(op.grad.numel(), n, "adamw: elements of grad");
  if (op.compute) MR_CHECK_EQ(op.compute.numel(), n, "adamw: elements of compute");

  AdamWArgs args;
  args.master = FlatOf(op.master, "master");
  args.m = FlatOf(op.m, "m");
  args.v = FlatOf(op.v, "v");
  args.grad = FlatOf(op.grad, "grad");
  args.compute = FlatOf(op.compute, "compute");
  args.scalars = ScalarsOf(op.scalars);
  args.beta1 = op.beta1;
  args.beta2 = op.beta2;
  args.eps = op.eps;
  args.weight_decay = op.weight_decay;
  const Launch launch = LaunchOn(stream);

  Ranges decay;
  const auto launch_until = [&](int64_t end) {
    args.end = end;
    if (args.begin < end) LaunchAdamW(args, decay, launch);
    args.begin = end;
  };
  if (op.decay) {
    for (const Range& range : *op.decay) {
      const Range own{std::max<int64_t>(0, range.begin - op.flat_begin.value()),
                      std::min(n, range.end - op.flat_begin.value())};
      if (own.begin >= own.end) continue;
      if (decay.count == kRangesPerLaunch) {
        // The next launch begins with a whole pack: it takes along the ranges that reach into that.
        launch_until(own.begin / kPack * kPack);
        Range* const kept = std::copy_if(decay.of, decay.of + decay.count, decay.of,
                                         [&](const Range& r) { return r.end > args.begin; });
        decay.count = static_cast<int>(kept - decay.of);
      }
      decay.of[decay.count++] = own;
    }
  }
  launch_until(n);
}

}  // namespace millrace
