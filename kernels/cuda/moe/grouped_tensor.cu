#include "kernels/cuda/moe/grouped_tiles.cuh"
#include "kernels/cuda/moe/tensor_tile.cuh"
#include "kernels/cuda/pack.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

// Tiles of 128 x 128 in steps of depth 64, three of them on their way at once; four warps of 64 x
// 64 each. Two blocks have room on a multiprocessor of an H100 or H200.
constexpr int kTileM = 128, kTileN = 128, kStages = 3, kThreads = 128, kWarpTile = 64;
constexpr int kBlocksPerSm = 2;
constexpr int kOperandBytes = kTileM * kDepth * 2, kStageBytes = 2 * kOperandBytes;
constexpr int kSharedBytes = kStages * kStageBytes;

template <Line A, Line B>
struct Mainloop {
  // Sums of a warp's 4 x 8 pieces of 16 x 8.
  float sums[4][8][4];

  __device__ __forceinline__ void Run(const GroupedArgs& g, const ExpertProduct& p,
                                      const GroupedTile& t, uint32_t shared) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) sums[i][j][c] = 0;
    const int steps = (p.k + kDepth - 1) / kDepth;
    const auto load = [&](int step) {
      if (step < steps) {
        const uint32_t at = shared + step % kStages * kStageBytes;
        CopyTile<A, kTileM, kThreads>(at, p.a, A == Line::kDepth ? g.a.mn : g.a.k, t.m0, p.m,
                                      step * kDepth, p.k);
        CopyTile<B, kTileN, kThreads>(at + kOperandBytes, p.b, B == Line::kDepth ? g.b.mn : g.b.k,
                                      t.n0, p.n, step * kDepth, p.k);
      }
      CommitCopies();
    };
    __syncthreads();  // the tile before has been read
    for (int step = 0; step < kStages - 1; ++step) load(step);
    for (int step = 0; step < steps; ++step) {
      WaitForCopies<kStages - 2>();
      __syncthreads();  // this step's tile is there, and the one before it has been read
      load(step + kStages - 1);
      Multiply(shared + step % kStages * kStageBytes);
    }
    WaitForCopies<0>();
  }

  __device__ __forceinline__ void Multiply(uint32_t shared) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int m = warp / 2 * kWarpTile, n = warp % 2 * kWarpTile;
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      uint32_t a[4][4], b[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) LoadA<A, kTileM>(a[i], shared, m + 16 * i, k);
#pragma unroll
      for (int j = 0; j < 4; ++j) LoadB<B, kTileN>(b[j], shared + kOperandBytes, n + 16 * j, k);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j)
          MultiplyAdd(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }

  // Lane l holds rows l/4 and l/4 + 8 of a piece, columns 2 (l%4) and the next.
  __device__ __forceinline__ void Store(const GroupedArgs& g, const ExpertProduct& p,
                                        const GroupedTile& t) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp,
              lane = static_cast<int>(threadIdx.x) % kWarp;
    const int m = t.m0 + warp / 2 * kWarpTile + lane / 4,
              n = t.n0 + warp % 2 * kWarpTile + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = m + 16 * i + 8 * half;
        if (row >= p.m) continue;
#pragma unroll
        for (int j = 0; j < 8; ++j)
          if (n + 8 * j < p.n)
            StorePair(g, p.out, row * g.out_row + n + 8 * j, sums[i][j][2 * half],
                      sums[i][j][2 * half + 1]);
      }
  }

  // Columns are a multiple of eight: both are inside.
  static __device__ __forceinline__ void StorePair(const GroupedArgs& g, std::byte* out, int64_t at,
                                                   float low, float high) {
    if (g.out_bf16) {
      auto* to = reinterpret_cast<uint32_t*>(out) + at / 2;
      if (g.accumulate) {
        const uint32_t old = *to;
        low = __fadd_rn(__uint_as_float(old << 16), low);
        high = __fadd_rn(__uint_as_float(old & 0xffff0000u), high);
      }
      *to = PairOfBF16(low, high);
    } else {
      auto* to = reinterpret_cast<float2*>(out) + at / 2;
      if (g.accumulate) {
        const float2 old = *to;
        low = __fadd_rn(old.x, low);
        high = __fadd_rn(old.y, high);
      }
      *to = make_float2(low, high);
    }
  }
};

template <Slots S, Line A, Line B>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) GroupedTensorKernel(const GroupedArgs g) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ TileStarts starts;
  BeginKernel();
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int tiles = FindTileStarts<S, kTileM, kTileN>(g, starts);
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    const GroupedTile t = FindTile<S, kTileM, kTileN>(g, starts, tile);
    const ExpertProduct p = ProductOf<S>(g, t, 2);
    Mainloop<A, B> product;
    product.Run(g, p, t, at);
    product.Store(g, p, t);
  }
}

}  // namespace

void LaunchGroupedTensor(const GroupedArgs& args, Slots slots, const Launch& launch) {
  const auto run = [&](auto kernel) {
    MR_CUDA(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
    LaunchKernel(launch, static_cast<unsigned>(kBlocksPerSm * launch.sms), kThreads, kSharedBytes,
                 kernel, args);
  };
  if (slots == Slots::kDepth)
    run(GroupedTensorKernel<Slots::kDepth, Line::kAcross, Line::kAcross>);
  else if (args.b.k == 1)
    run(GroupedTensorKernel<Slots::kRows, Line::kDepth, Line::kDepth>);
  else
    run(GroupedTensorKernel<Slots::kRows, Line::kDepth, Line::kAcross>);
}

}  // namespace millrace::cuda
