// AdamW with constants that differ along the shard: one launch, in which a block has elements of
// one stretch, so that it forms one set of factors as blocks of update.cu do.
#include "kernels/cuda/step/adamw.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

__device__ __forceinline__ const Stretch& StretchOf(const Stretches& stretches, int64_t block) {
  int low = 0, high = stretches.count - 1;  // the last whose first block is not behind `block`
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (stretches.of[middle].first_block <= block)
      low = middle;
    else
      high = middle - 1;
  }
  return stretches.of[low];
}

template <Elements Grad, Elements Mix, int W>
__device__ __forceinline__ void UpdateUnit(const AdamWArgs& a, const Factors& f, int64_t unit) {
  if (f.applied)
    Update<Grad, Mix, W>(a, f, LoadState<Grad, W>(a, unit), unit, ~0u);
  else if (a.compute.data != nullptr)
    StoreAsItIs<Mix, W>(a, unit);
}

// A thread has a unit of W elements; those of a stretch that are in no whole unit are of its last
// block's.
template <Elements Grad, Elements Mix, int W>
__global__ void __launch_bounds__(kFlatThreads)
    AdamWStretchesKernel(const __grid_constant__ AdamWArgs a,
                         const __grid_constant__ Stretches stretches) {
  BeginKernel();
  __shared__ Factors factors;
  const Stretch& mine = StretchOf(stretches, blockIdx.x);
  AdamWArgs by = a;
  by.lr_scale = mine.lr_scale;
  by.beta1 = mine.beta1;
  by.beta2 = mine.beta2;
  by.eps = mine.eps;
  by.weight_decay = mine.weight_decay;
  FormFactors(by, factors);
  __syncthreads();
  const Factors f = factors;
  const int64_t tile = mine.begin / W + (int64_t{blockIdx.x} - mine.first_block) * kFlatThreads;
  const int64_t units = mine.end / W, unit = tile + threadIdx.x;
  if (unit < units) UpdateUnit<Grad, Mix, W>(a, f, unit);
  const int64_t last = units * W + threadIdx.x;
  const bool is_last_block = tile + kFlatThreads >= (mine.end + W - 1) / W;
  if (W == 1 || !is_last_block || last >= mine.end) return;
  UpdateUnit<Grad, Mix, 1>(a, f, last);
}

}  // namespace

void LaunchAdamWStretches(const AdamWArgs& args, Stretches stretches, const Launch& launch) {
  bool wide = true;
  for (const Rows& rows : {args.master, args.m, args.v, args.grad, args.compute})
    wide &= rows.wide || rows.data == nullptr;
  for (int s = 0; s < stretches.count; ++s) wide &= stretches.of[s].begin % 4 == 0;
  const auto run = [&]<Elements Grad, Elements Mix, int W>() {
    int64_t blocks = 0;
    for (int s = 0; s < stretches.count; ++s) {
      Stretch& stretch = stretches.of[s];
      stretch.first_block = blocks;
      blocks += CeilDiv(CeilDiv(stretch.end, W) - stretch.begin / W, kFlatThreads);
    }
    LaunchKernel(launch, static_cast<unsigned>(blocks), kFlatThreads, 0,
                 AdamWStretchesKernel<Grad, Mix, W>, args, stretches);
  };
  WithDTypes(args, [&]<Elements Grad, Elements Mix>() {
    wide ? run.template operator()<Grad, Mix, 4>() : run.template operator()<Grad, Mix, 1>();
  });
}

}  // namespace millrace::cuda
