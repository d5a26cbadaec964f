#include "kernels/cuda/moe/router_bias_launch.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) ExpertLoadKernel(const ExpertLoadArgs a) {
  BeginKernel();
  const int e = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (e >= a.experts) return;
  const float load = static_cast<float>(a.offsets[e + 1] - a.offsets[e]);
  a.load[e] = a.accumulate ? __fadd_rn(a.load[e], load) : load;
}

// A block has a range. Compared as integers, experts times each, as in kernels/cpu.
__global__ void __launch_bounds__(kThreads)
    RouterBiasKernel(const RouterBiasArgs a, const __grid_constant__ Ranges ranges) {
  BeginKernel();
  if (a.scalars->applied == 0) return;
  const Range range = ranges.of[blockIdx.x];
  for (int64_t i = range.begin + static_cast<int64_t>(threadIdx.x); i < range.end; i += kThreads) {
    const int64_t loads = static_cast<int64_t>(a.load[i]) * a.experts;
    if (loads != a.pairs) a.bias[i] = __fadd_rn(a.bias[i], loads < a.pairs ? a.rate : -a.rate);
  }
}

}  // namespace

void LaunchExpertLoad(const ExpertLoadArgs& args, const Launch& launch) {
  LaunchKernel(launch, static_cast<unsigned>(CeilDiv(args.experts, kThreads)), kThreads, 0,
               ExpertLoadKernel, args);
}

void LaunchRouterBias(const RouterBiasArgs& args, const Ranges& ranges, const Launch& launch) {
  LaunchKernel(launch, static_cast<unsigned>(ranges.count), kThreads, 0, RouterBiasKernel, args,
               ranges);
}

}  // namespace millrace::cuda
