// AdamW with moments in bf16, rounded stochastically.
#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/step/adamw.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

// Of kernels/ops/rounding.h.
__device__ __forceinline__ uint4 MomentWords(uint64_t key, int64_t group, int64_t t) {
  return PhiloxWords(key, static_cast<uint64_t>(t), static_cast<uint64_t>(group));
}

__device__ __forceinline__ uint16_t RoundStochastically(float value, uint32_t bits) {
  const uint32_t word = __float_as_uint(value);
  if ((word & 0x7f800000u) == 0x7f800000u) return static_cast<uint16_t>(PairOfBF16(value, 0.0f));
  return static_cast<uint16_t>((word + bits) >> 16);
}

__device__ __forceinline__ uint32_t WordOf4(const uint4& words, int64_t at) {
  const uint32_t all[4] = {words.x, words.y, words.z, words.w};
  return all[at & 3];
}

// The random words of W elements from flat element `i` on, and whether each decays. `run`: the
// first of the list that ends behind the elements before; moved on.
template <int W>
__device__ __forceinline__ void WordsOf(const NarrowRuns& runs, int64_t i, int64_t t, int run,
                                        uint32_t (&words)[W], unsigned& decay) {
  decay = 0;
  int64_t group = -1;
  uint4 block = {};
  for (int e = 0; e < W; ++e) {
    while (run < runs.count && runs.of[run].end <= i + e) ++run, group = -1;
    words[e] = 0;
    if (run == runs.count || i + e < runs.of[run].begin) continue;
    const LogicalRun& of = runs.of[run];
    const int64_t j = i + e - of.begin, row = of.length > j ? 0 : j / of.length;
    const int64_t at = of.first + row * of.stride + (j - row * of.length);
    if (at / 4 != group) block = MomentWords(of.key, group = at / 4, t);
    words[e] = WordOf4(block, at);
    decay |= static_cast<unsigned>(runs.decays >> run & 1) << e;
  }
}

template <Elements Grad, Elements Mix, int W>
__device__ __forceinline__ void UpdateNarrow(const AdamWArgs& a, const NarrowRuns& runs,
                                             const Factors& f, int64_t t, int64_t unit, int run) {
  constexpr Elements kF32 = Elements::kF32, kBF16 = Elements::kBF16;
  float w[W], m[W], v[W], g[W], direction[W];
  Widen<kF32, W>(LoadUnit<kF32, W>(a.master, unit), w);
  Widen<kBF16, W>(LoadUnit<kBF16, W>(a.m, unit), m);
  Widen<kBF16, W>(LoadUnit<kBF16, W>(a.v, unit), v);
  Widen<Grad, W>(LoadUnit<Grad, W>(a.grad, unit), g);
#pragma unroll
  for (int i = 0; i < W; ++i) FormMoments(f, g[i], m[i], v[i]);
  uint32_t words[W];
  unsigned decay;
  WordsOf<W>(runs, runs.flat_begin + unit * W, t, run, words, decay);
  uint16_t narrow_m[W], narrow_v[W];
#pragma unroll
  for (int i = 0; i < W; ++i) {
    narrow_m[i] = RoundStochastically(m[i], words[i] & 0xffffu);
    narrow_v[i] = RoundStochastically(v[i], words[i] >> 16);
  }
  Unit<kBF16, W> unit_m, unit_v;
  memcpy(&unit_m, narrow_m, sizeof unit_m), memcpy(&unit_v, narrow_v, sizeof unit_v);
  StoreUnit<kBF16, W>(a.m, unit, unit_m);
  StoreUnit<kBF16, W>(a.v, unit, unit_v);
  Directions<W>(f, m, v, direction);
  Move<Mix, W>(a, f, unit, direction, decay, w);
}

// A thread has a unit of W elements; those that are in no whole unit are of the last block's.
template <Elements Grad, Elements Mix, int W>
__global__ void __launch_bounds__(kFlatThreads)
    AdamWNarrowKernel(const __grid_constant__ AdamWArgs a,
                      const __grid_constant__ NarrowRuns runs) {
  BeginKernel();
  __shared__ Factors factors;
  __shared__ int first_run;
  FormFactors(a, factors);
  const int64_t tile = a.begin / W + int64_t{blockIdx.x} * kFlatThreads;
  if (threadIdx.x == 2 * kWarp) {
    first_run = 0;
    while (first_run < runs.count && runs.of[first_run].end <= runs.flat_begin + tile * W)
      ++first_run;
  }
  __syncthreads();
  const Factors f = factors;
  const int64_t t = a.scalars->adam_t, units = a.end / W, unit = tile + threadIdx.x;
  if (unit < units) {
    if (f.applied)
      UpdateNarrow<Grad, Mix, W>(a, runs, f, t, unit, first_run);
    else
      StoreAsItIs<Mix, W>(a, unit);
  }
  const int64_t last = units * W + threadIdx.x;
  if (W == 1 || blockIdx.x + 1 != gridDim.x || last >= a.end) return;
  if (f.applied)
    UpdateNarrow<Grad, Mix, 1>(a, runs, f, t, last, 0);
  else
    StoreAsItIs<Mix, 1>(a, last);
}

}  // namespace

void LaunchAdamWNarrow(const AdamWArgs& args, const NarrowRuns& runs, const Launch& launch) {
  bool wide = true;
  for (const Rows& rows : {args.master, args.m, args.v, args.grad, args.compute})
    wide &= rows.wide || rows.data == nullptr;
  const auto run = [&]<Elements Grad, Elements Mix, int W>() {
    const int64_t tiles = CeilDiv(CeilDiv(args.end, W) - args.begin / W, kFlatThreads);
    LaunchKernel(launch, static_cast<unsigned>(tiles), kFlatThreads, 0,
                 AdamWNarrowKernel<Grad, Mix, W>, args, runs);
  };
  WithDTypes(args, [&]<Elements Grad, Elements Mix>() {
    wide ? run.template operator()<Grad, Mix, 4>() : run.template operator()<Grad, Mix, 1>();
  });
}

}  // namespace millrace::cuda
