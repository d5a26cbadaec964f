#include "kernels/cuda/moe/grouped_tiles.cuh"
#include "kernels/cuda/pack.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

// Tiles of 64 x 64 and depth 16; a thread has 4 x 4 sums, each over k in its order.
constexpr int kTile = 64, kDepth = 16, kThreads = 256, kSums = 4;

template <bool kBF16>
__device__ __forceinline__ float At(const std::byte* data, int64_t i) {
  if constexpr (kBF16)
    return __uint_as_float(static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(data)[i]) << 16);
  else
    return reinterpret_cast<const float*>(data)[i];
}

// tile[k][i] = element (first + i, k0 + k), zero beyond the limits. Neighbouring threads take
// neighbours in memory.
template <bool kBF16>
__device__ void LoadTile(float (&tile)[kDepth][kTile + 1], const std::byte* data,
                         const GroupedOperand& strides, int first, int limit, int k0, int k_limit) {
  for (int at = static_cast<int>(threadIdx.x); at < kTile * kDepth; at += kThreads) {
    const bool by_depth = strides.k == 1;
    const int i = by_depth ? at / kDepth : at % kTile, k = by_depth ? at % kDepth : at / kTile;
    const bool inside = first + i < limit && k0 + k < k_limit;
    tile[k][i] = inside ? At<kBF16>(data, (first + i) * strides.mn + (k0 + k) * strides.k) : 0.0f;
  }
}

__device__ __forceinline__ void StoreOne(const GroupedArgs& g, std::byte* out, int64_t at,
                                         float sum) {
  if (g.out_bf16) {
    uint16_t* p = reinterpret_cast<uint16_t*>(out) + at;
    if (g.accumulate) sum = __fadd_rn(__uint_as_float(static_cast<uint32_t>(*p) << 16), sum);
    *p = static_cast<uint16_t>(PairOfBF16(sum, 0.0f));
  } else {
    float* p = reinterpret_cast<float*>(out) + at;
    *p = g.accumulate ? __fadd_rn(*p, sum) : sum;
  }
}

template <Slots S, bool kBF16>
__global__ void __launch_bounds__(kThreads) GroupedPlainKernel(const GroupedArgs g) {
  __shared__ TileStarts starts;
  __shared__ float a[kDepth][kTile + 1], b[kDepth][kTile + 1];
  BeginKernel();
  const int tiles = FindTileStarts<S, kTile, kTile>(g, starts);
  const int row = static_cast<int>(threadIdx.x) / 16 * kSums,
            column = static_cast<int>(threadIdx.x) % 16 * kSums;
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    const GroupedTile t = FindTile<S, kTile, kTile>(g, starts, tile);
    const ExpertProduct p = ProductOf<S>(g, t, kBF16 ? 2 : 4);
    float sums[kSums][kSums] = {};
    for (int k0 = 0; k0 < p.k; k0 += kDepth) {
      LoadTile<kBF16>(a, p.a, g.a, t.m0, p.m, k0, p.k);
      LoadTile<kBF16>(b, p.b, g.b, t.n0, p.n, k0, p.k);
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kDepth; ++k)
#pragma unroll
        for (int i = 0; i < kSums; ++i)
#pragma unroll
          for (int j = 0; j < kSums; ++j)
            sums[i][j] = __fmaf_rn(a[k][row + i], b[k][column + j], sums[i][j]);
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i)
#pragma unroll
      for (int j = 0; j < kSums; ++j)
        if (t.m0 + row + i < p.m && t.n0 + column + j < p.n)
          StoreOne(g, p.out, (t.m0 + row + i) * g.out_row + t.n0 + column + j, sums[i][j]);
  }
}

}  // namespace

void LaunchGroupedPlain(const GroupedArgs& args, Slots slots, bool bf16, const Launch& launch) {
  const auto run = [&](auto kernel) {
    LaunchKernel(launch, static_cast<unsigned>(4 * launch.sms), kThreads, 0, kernel, args);
  };
  if (slots == Slots::kRows)
    bf16 ? run(GroupedPlainKernel<Slots::kRows, true>)
         : run(GroupedPlainKernel<Slots::kRows, false>);
  else
    bf16 ? run(GroupedPlainKernel<Slots::kDepth, true>)
         : run(GroupedPlainKernel<Slots::kDepth, false>);
}

}  // namespace millrace::cuda
