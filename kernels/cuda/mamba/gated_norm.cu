#include "kernels/cuda/mamba/gated.cuh"
#include "kernels/cuda/mamba/mamba_launch.h"
#include "kernels/ops/cuda_ssd.h"
#include "runtime/base/cuda/launch.cuh"

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

// Of bf16, both gradients of a narrow group at once, from one reading of y, z and d_out. A block
// has a group and a chunk of rows, a warp every eighth of them and a lane kPacks packs of the
// group, so that rows reach the lane's sums in WeightKernel's order. The next row is on its way
// meanwhile. d_y may be written over d_out: a warp reads its own rows alone, each before it writes
// it.
template <int kPacks>
__global__ void __launch_bounds__(kThreads, kPacks < 4 ? 2 : 1)
    NarrowGradKernel(const GatedNormArgs a) {
  __shared__ float parts[kWarps][kPacks * kPack][kWarp + 1];
  BeginKernel();
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            part = static_cast<int>(threadIdx.x) / kWarp, group = static_cast<int>(blockIdx.x);
  const int64_t first = int64_t{group} * a.columns;
  const int64_t rows = (a.rows + gridDim.y - 1) / gridDim.y, begin = blockIdx.y * rows;
  const int64_t end = min(begin + rows, a.rows);
  const auto within = [&](int p) { return (p * kWarp + lane) * kPack; };
  float sums[kPacks][kPack] = {};
  Floats weight[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
    if (within(p) < a.columns)
      weight[p] = Load<Elements::kAny>(a.weight, first + within(p), a.columns - within(p));
  Raw<Elements::kBF16> y[kPacks], z[kPacks], d[kPacks];
  float rstd = 0;
  const auto load = [&](int64_t r) {
    rstd = a.rstd[r * a.groups + group];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int n = a.columns - within(p);
      if (n <= 0) continue;
      const int64_t c = first + within(p);
      y[p] = LoadRaw<Elements::kBF16>(a.y, r * a.y.stride + c, n);
      z[p] = LoadRaw<Elements::kBF16>(a.z, r * a.z.stride + c, n);
      d[p] = LoadRaw<Elements::kBF16>(a.out, r * a.out.stride + c, n);
    }
  };
  if (begin + part < end) load(begin + part);
  for (int64_t r = begin + part; r < end; r += kWarps) {
    Raw<Elements::kBF16> y_now[kPacks], z_now[kPacks], d_now[kPacks];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) y_now[p] = y[p], z_now[p] = z[p], d_now[p] = d[p];
    const float rstd_now = rstd;
    if (r + kWarps < end) load(r + kWarps);
    float sum = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (within(p) >= a.columns) continue;
      const Floats y_of = ToFloats<Elements::kBF16>(a.y, y_now[p]),
                   z_of = ToFloats<Elements::kBF16>(a.z, z_now[p]),
                   d_of = ToFloats<Elements::kBF16>(a.out, d_now[p]);
      Floats v;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float vhat = __fmul_rn(__fmul_rn(y_of.v[i], SiluOf(z_of.v[i]).value), rstd_now);
        sums[p][i] = __fmaf_rn(d_of.v[i], vhat, sums[p][i]);
        v.v[i] = __fmul_rn(__fmul_rn(d_of.v[i], weight[p].v[i]), vhat);
      }
      sum = __fadd_rn(sum, SumOfPack(v));
    }
    const float mean = WarpSum(sum) / static_cast<float>(a.columns);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int n = a.columns - within(p);
      if (n <= 0) continue;
      const Floats y_of = ToFloats<Elements::kBF16>(a.y, y_now[p]),
                   z_of = ToFloats<Elements::kBF16>(a.z, z_now[p]),
                   d_of = ToFloats<Elements::kBF16>(a.out, d_now[p]);
      Floats d_y, d_z;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const Silu silu = SiluOf(z_of.v[i]);
        const float vhat = __fmul_rn(__fmul_rn(y_of.v[i], silu.value), rstd_now),
                    weighted = __fmul_rn(d_of.v[i], weight[p].v[i]);
        const float d_v = __fmul_rn(__fmaf_rn(-vhat, mean, weighted), rstd_now);
        d_y.v[i] = __fmul_rn(d_v, silu.value);
        d_z.v[i] = __fmul_rn(__fmul_rn(d_v, y_of.v[i]), silu.derivative);
      }
      Store<Elements::kBF16>(a.d_y, r * a.d_y.stride + first + within(p), n, d_y);
      Store<Elements::kBF16>(a.d_z, r * a.d_z.stride + first + within(p), n, d_z);
    }
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
#pragma unroll
    for (int i = 0; i < kPack; ++i) parts[part][p * kPack + i][lane] = sums[p][i];
  __syncthreads();
  float* const row = a.partials + int64_t{blockIdx.y} * a.groups * a.columns + first;
  for (int c = static_cast<int>(threadIdx.x); c < a.columns; c += kThreads) {
    const int pack = c / kPack, value = pack / kWarp * kPack + c % kPack;
    float sum = 0;
    for (int p = 0; p < kWarps; ++p) sum = __fadd_rn(sum, parts[p][value][pack % kWarp]);
    row[c] = sum;
  }
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

// False: the groups are too wide.
bool LaunchNarrowGrad(const GatedNormArgs& a, unsigned blocks, const Launch& launch) {
  constexpr int kWidth = kWarp * kPack;
  const dim3 grid(static_cast<unsigned>(a.groups), blocks);
  if (a.columns <= kWidth)
    LaunchKernel(launch, grid, kThreads, 0, NarrowGradKernel<1>, a);
  else if (a.columns <= 2 * kWidth)
    LaunchKernel(launch, grid, kThreads, 0, NarrowGradKernel<2>, a);
  else if (a.columns <= 4 * kWidth)
    LaunchKernel(launch, grid, kThreads, 0, NarrowGradKernel<4>, a);
  else
    return false;
  return true;
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
  if (a.rows > 0 && !(elements == Elements::kBF16 && LaunchNarrowGrad(a, blocks, launch)))
    Dispatch(elements, [&]<Elements E>() {
      const dim3 grid(static_cast<unsigned>(CeilDiv(packs, kWarp)), blocks);
      LaunchKernel(launch, grid, kThreads, 0, WeightKernel<E>, a);
      LaunchKernel(launch, RowBlocks(a), kThreads, 0, GradKernel<E>, a);
    });
  LaunchKernel(launch, static_cast<unsigned>(CeilDiv(a.groups * a.columns, kThreads)), kThreads, 0,
               SumsKernel, a, static_cast<int>(blocks));
}

}  // namespace millrace::cuda
