#include <algorithm>

#include "kernels/cuda/flat.cuh"
#include "kernels/cuda/step/adamw.cuh"
#include "kernels/cuda/step/update_launch.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr double kPi = 3.14159265358979323846;

// Units that a thread of AdamW loads before it uses the first, and blocks that
// registers leave room for.
constexpr int kAdamWUnroll = 1, kAdamWBlocksPerSm = 5;

// Share of a decay that is over after `done` of `length` steps; a decay of
// length 0 is over at once.
__device__ double Share(int64_t done, int64_t length) {
  if (done < 0) return 0;
  if (done >= length) return 1;
  return static_cast<double>(done) / static_cast<double>(length);
}

// LearningRateAt of kernels/ops/learning_rate.cc, on the device because the step is there. The
// cosine may differ from the host's in its last bit.
__global__ void BeginStepKernel(StepScalars* scalars, const LearningRate s,
                                const float first_loss_scale) {
  BeginKernel();
  const int64_t step = scalars->step;
  double lr = s.lr;
  if (step < s.warmup) {
    lr = __ddiv_rn(__dmul_rn(s.lr, static_cast<double>(step + 1)), static_cast<double>(s.warmup));
  } else if (s.kind == ScheduleKind::kCosine) {
    const double factor =
        __dadd_rn(1.0, cos(__dmul_rn(kPi, Share(step - s.warmup, s.decay_steps))));
    lr = __dadd_rn(s.min_lr, __ddiv_rn(__dmul_rn(__dsub_rn(s.lr, s.min_lr), factor), 2.0));
  } else if (s.kind == ScheduleKind::kWsd) {
    const double share = Share(step - (s.total_steps - s.decay_steps), s.decay_steps);
    lr = __dadd_rn(s.lr, __dmul_rn(__dsub_rn(s.min_lr, s.lr), share));
  }
  scalars->lr = lr;
  scalars->loss_scale = first_loss_scale == 0          ? 1
                        : scalars->next_loss_scale > 0 ? scalars->next_loss_scale
                                                       : first_loss_scale;
}

// Which elements of a tile decay: all, none, or those that its ranges say.
struct TileDecay {
  int first;      // first range that ends behind the tile's begin
  bool mixed;     // ask each unit
  unsigned bits;  // else: of every unit
};

// `begin`, `end` in elements, equal in all threads of a block.
__device__ __forceinline__ TileDecay DecayOf(const Ranges& decay, int64_t begin, int64_t end) {
  int low = 0, high = decay.count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (decay.of[middle].end <= begin)
      low = middle + 1;
    else
      high = middle;
  }
  if (low == decay.count || decay.of[low].begin >= end) return {low, false, 0u};
  return {low, decay.of[low].begin > begin || decay.of[low].end < end, ~0u};
}

// Bit i: element at + i decays.
template <int W>
__device__ __forceinline__ unsigned UnitDecay(const Ranges& decay, const TileDecay& tile,
                                              int64_t at) {
  if (!tile.mixed) return tile.bits;
  int r = tile.first;
  while (r < decay.count && decay.of[r].end <= at) ++r;
  unsigned mask = 0;
  for (; r < decay.count && decay.of[r].begin < at + W; ++r) {
    const int from = static_cast<int>(max(int64_t{0}, decay.of[r].begin - at));
    const int to = static_cast<int>(min(int64_t{W}, decay.of[r].end - at));
    mask |= (1u << to) - (1u << from);
  }
  return mask;
}

template <Elements Grad, Elements Mix, int W, int kUnroll, int kBlocksPerSm>
__global__ void __launch_bounds__(kFlatThreads, kBlocksPerSm)
    AdamWKernel(const __grid_constant__ AdamWArgs a, const __grid_constant__ Ranges decay) {
  BeginKernel();
  __shared__ Factors factors;
  constexpr Elements kF32 = Elements::kF32;
  constexpr int64_t kTile = kUnroll * kFlatThreads;  // units
  const int64_t units = a.end / W;                   // whole ones; `begin` is a multiple of W
  const int64_t stride = gridDim.x * kTile;
  int64_t tile = a.begin / W + blockIdx.x * kTile;
  State<Grad, W> state[kUnroll];
  const auto load = [&] {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t unit = tile + u * kFlatThreads + threadIdx.x;
      if (unit < units) state[u] = LoadState<Grad, W>(a, unit);
    }
  };
  load();  // under way while the factors form
  FormFactors(a, factors);
  __syncthreads();
  const Factors f = factors;
  // What no whole unit holds: the last elements of the shard.
  const int64_t last = units * W + threadIdx.x;
  const bool owns_last = W > 1 && blockIdx.x == 0 && last < a.end;
  if (!f.applied) {
    if (a.compute.data == nullptr) return;
    for (; tile < units; tile += stride) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t unit = tile + u * kFlatThreads + threadIdx.x;
        if (unit >= units) break;
        float w[W];
        Widen<kF32, W>(LoadUnit<kF32, W>(a.master, unit), w);
        StoreCompute<Mix, W>(a, unit, w);
      }
    }
    if (owns_last) {
      const float w[1] = {__uint_as_float(LoadUnit<kF32, 1>(a.master, last))};
      StoreCompute<Mix, 1>(a, last, w);
    }
    return;
  }
  while (tile < units) {
    const TileDecay tile_decay = DecayOf(decay, tile * W, (tile + kTile) * W);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t unit = tile + u * kFlatThreads + threadIdx.x;
      if (unit < units)
        Update<Grad, Mix, W>(a, f, state[u], unit, UnitDecay<W>(decay, tile_decay, unit * W));
    }
    tile += stride;
    load();
  }
  if (owns_last) {
    const TileDecay ask{0, true, 0u};
    Update<Grad, Mix, 1>(a, f, LoadState<Grad, 1>(a, last), last, UnitDecay<1>(decay, ask, last));
  }
}

}  // namespace

void LaunchBeginStep(StepScalars* scalars, const BeginStepAttrs& attrs, const Launch& launch) {
  LaunchKernel(launch, 1, 1, 0, BeginStepKernel, scalars, attrs.schedule,
               static_cast<float>(attrs.scaling.init_scale));
}

void LaunchAdamW(const AdamWArgs& args, const Ranges& decay, const Launch& launch) {
  bool wide = true;
  for (const Rows& rows : {args.master, args.m, args.v, args.grad, args.compute})
    wide &= rows.wide || rows.data == nullptr;
  WithDTypes(args, [&]<Elements Grad, Elements Mix>() {
    const auto run = [&]<int W>() {
      const int64_t tiles = CeilDiv(args.end - args.begin, kAdamWUnroll * kFlatThreads * W);
      LaunchKernel(launch, static_cast<unsigned>(tiles), kFlatThreads, 0,
                   AdamWKernel<Grad, Mix, W, kAdamWUnroll, kAdamWBlocksPerSm>, args, decay);
    };
    wide ? run.template operator()<4>() : run.template operator()<1>();
  });
}

}  // namespace millrace::cuda
