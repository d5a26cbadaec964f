#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mamba/gated.cuh"
#include "kernels/cuda/mamba/mamba_launch.h"
#include "kernels/ops/cuda_ssd.h"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// A warp's group of a row; a lane has every 32nd pack of it.
struct Group {
  int64_t row, at;  // at: where the group begins in a row
  int group, lane;
  bool inside;

  __device__ explicit Group(const GatedNormArgs& a) {
    const int64_t w = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
    row = w / a.groups;
    group = static_cast<int>(w % a.groups);
    at = int64_t{group} * a.columns;
    lane = static_cast<int>(threadIdx.x) % kWarp;
    inside = row < a.rows;
  }
};

// f(element of a row, how many of the pack).
template <class F>
__device__ __forceinline__ void ForPacks(const GatedNormArgs& a, const Group& g, F&& f) {
  for (int c = g.lane * kPack; c < a.columns; c += kWarp * kPack) f(g.at + c, a.columns - c);
}

template <Elements E>
__device__ __forceinline__ Floats GatedOf(const GatedNormArgs& a, int64_t row, int64_t c, int n) {
  const Floats y = Load<E>(a.y, row * a.y.stride + c, n), z = Load<E>(a.z, row * a.z.stride + c, n);
  Floats v;
#pragma unroll
  for (int i = 0; i < kPack; ++i) v.v[i] = __fmul_rn(y.v[i], SiluOf(z.v[i]).value);
  return v;
}

template <Elements E>
__global__ void __launch_bounds__(kThreads) NormKernel(const GatedNormArgs a) {
  BeginKernel();
  const Group g(a);
  if (!g.inside) return;
  float squares = 0;
  ForPacks(a, g, [&](int64_t c, int n) {
    Floats v = GatedOf<E>(a, g.row, c, n);
#pragma unroll
    for (int i = 0; i < kPack; ++i) v.v[i] = __fmul_rn(v.v[i], v.v[i]);
    squares = __fadd_rn(squares, SumOfPack(v));
  });
  squares = WarpSum(squares);
  const float rstd = 1.0f / sqrtf(squares / static_cast<float>(a.columns) + a.eps);
  if (g.lane == 0) a.rstd[g.row * a.groups + g.group] = rstd;
  ForPacks(a, g, [&](int64_t c, int n) {
    Floats v = GatedOf<E>(a, g.row, c, n);
    const Floats weight = Load<Elements::kAny>(a.weight, c, n);
#pragma unroll
    for (int i = 0; i < kPack; ++i) v.v[i] = __fmul_rn(__fmul_rn(v.v[i], rstd), weight.v[i]);
    Store<E>(a.out, g.row * a.out.stride + c, n, v);
  });
}

template <Elements E>
__global__ void __launch_bounds__(kThreads) GradKernel(const GatedNormArgs a) {
  BeginKernel();
  const Group g(a);
  if (!g.inside) return;
  const float rstd = a.rstd[g.row * a.groups + g.group];
  const auto weighted_of = [&](int64_t c, int n) {
    Floats d = Load<E>(a.out, g.row * a.out.stride + c, n);
    const Floats weight = Load<Elements::kAny>(a.weight, c, n);
#pragma unroll
    for (int i = 0; i < kPack; ++i) d.v[i] = __fmul_rn(d.v[i], weight.v[i]);
    return d;
  };
  float sum = 0;
  ForPacks(a, g, [&](int64_t c, int n) {
    Floats v = GatedOf<E>(a, g.row, c, n);
    const Floats d = weighted_of(c, n);
#pragma unroll
    for (int i = 0; i < kPack; ++i) v.v[i] = __fmul_rn(d.v[i], __fmul_rn(v.v[i], rstd));
    sum = __fadd_rn(sum, SumOfPack(v));
  });
  const float mean = WarpSum(sum) / static_cast<float>(a.columns);
  ForPacks(a, g, [&](int64_t c, int n) {
    const Floats y = Load<E>(a.y, g.row * a.y.stride + c, n),
                 z = Load<E>(a.z, g.row * a.z.stride + c, n), d = weighted_of(c, n);
    Floats d_y, d_z;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const Silu silu = SiluOf(z.v[i]);
      const float vhat = __fmul_rn(__fmul_rn(y.v[i], silu.value), rstd);
      const float d_v = __fmul_rn(__fmaf_rn(-vhat, mean, d.v[i]), rstd);
      d_y.v[i] = __fmul_rn(d_v, silu.value);
      d_z.v[i] = __fmul_rn(__fmul_rn(d_v, y.v[i]), silu.derivative);
    }
    Store<E>(a.d_y, g.row * a.d_y.stride + c, n, d_y);
    Store<E>(a.d_z, g.row * a.d_z.stride + c, n, d_z);
  });
}

// Of eight columns, a warp's part of a block's rows: every eighth. d_y may be written over d_out,
// so this runs first.
template <Elements E>
__global__ void __launch_bounds__(kThreads) WeightKernel(const GatedNormArgs a) {
  __shared__ float parts[kWarps][kPack][kWarp + 1];
  BeginKernel();
  const int all = a.groups * a.columns;
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            part = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t rows = (a.rows + gridDim.y - 1) / gridDim.y, begin = blockIdx.y * rows;
  const int64_t end = min(begin + rows, a.rows);
  // Packs of a group: a pack does not reach into the next one.
  const int packs = (a.columns + kPack - 1) / kPack,
            pack = static_cast<int>(blockIdx.x * kWarp) + lane, group = pack / packs,
            within = pack % packs * kPack;
  float sums[kPack] = {};
  if (group < a.groups) {
    const int64_t c = int64_t{group} * a.columns + within;
    for (int64_t r = begin + part; r < end; r += kWarps) {
      const Floats v = GatedOf<E>(a, r, c, a.columns - within),
                   d = Load<E>(a.out, r * a.out.stride + c, a.columns - within);
      const float rstd = a.rstd[r * a.groups + group];
#pragma unroll
      for (int i = 0; i < kPack; ++i) sums[i] = __fmaf_rn(d.v[i], __fmul_rn(v.v[i], rstd), sums[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i) parts[part][i][lane] = sums[i];
  __syncthreads();
  if (group >= a.groups) return;
  // Warp `part` adds up element `part` of each pack.
  float sum = 0;
  for (int p = 0; p < kWarps; ++p) sum = __fadd_rn(sum, parts[p][part][lane]);
  if (within + part < a.columns)
    a.partials[int64_t{blockIdx.y} * all + int64_t{group} * a.columns + within + part] = sum;
}

__global__ void __launch_bounds__(kThreads) SumsKernel(const GatedNormArgs a, int blocks) {
  BeginKernel();
  const int all = a.groups * a.columns, c = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (c >= all) return;
  double sum = 0;
  for (int block = 0; block < blocks; ++block)
    sum = __dadd_rn(sum, static_cast<double>(a.partials[int64_t{block} * all + c]));
  SetElement(a.d_weight, c, static_cast<float>(sum), a.add_weight);
}

template <class F>
void Dispatch(Elements elements, F&& f) {
  if (elements == Elements::kBF16)
    f.template operator()<Elements::kBF16>();
  else if (elements == Elements::kF32)
    f.template operator()<Elements::kF32>();
  else
    f.template operator()<Elements::kAny>();
}

unsigned RowBlocks(const GatedNormArgs& a) {
  return static_cast<unsigned>(CeilDiv(a.rows * a.groups, kWarps));
}

}  // namespace

void LaunchGatedNorm(const GatedNormArgs& a, Elements elements, const Launch& launch) {
  if (a.rows == 0 || a.columns == 0) return;
  Dispatch(elements, [&]<Elements E>() {
    LaunchKernel(launch, RowBlocks(a), kThreads, 0, NormKernel<E>, a);
  });
}

void LaunchGatedNormGrad(const GatedNormArgs& a, Elements elements, const Launch& launch) {
  if (a.columns == 0) return;
  const int64_t packs = CeilDiv(a.columns, kPack) * a.groups;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(kGatedNormBlocks, a.rows));
  if (a.rows > 0)
    Dispatch(elements, [&]<Elements E>() {
      const dim3 grid(static_cast<unsigned>(CeilDiv(packs, kWarp)), blocks);
      LaunchKernel(launch, grid, kThreads, 0, WeightKernel<E>, a);
      LaunchKernel(launch, RowBlocks(a), kThreads, 0, GradKernel<E>, a);
    });
  LaunchKernel(launch, static_cast<unsigned>(CeilDiv(a.groups * a.columns, kThreads)), kThreads, 0,
               SumsKernel, a, static_cast<int>(blocks));
}

}  // namespace millrace::cuda
