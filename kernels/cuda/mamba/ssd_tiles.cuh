// Tiles of bf16 in shared memory, as the scan's kernels on tensor cores have them, and their
// fragments (tensor_cores/mma.cuh).
#pragma once

#include "kernels/cuda/mamba/ssd_device.cuh"
#include "kernels/cuda/tensor_cores/mma.cuh"
#include "runtime/base/cuda/cuda_check.h"

namespace millrace::cuda {

// The sizes that SsdOnTensorCores asks for.
inline constexpr int kQ = static_cast<int>(kSsdChunk), kP = static_cast<int>(kSsdChannels),
                     kN = static_cast<int>(kSsdStates);

// Rows of kColumns, a multiple of 64. Pieces of 16 bytes of row r are permuted by r % 8, so that
// eight rows' pieces of the same columns lie in different banks.
template <int kColumns>
struct Tile {
  uint16_t* data;

  __device__ uint16_t* At(int row, int column) const {
    return data + row * kColumns + (((column / 8) ^ (row % 8)) * 8) + column % 8;
  }
  __device__ float2 PairAt(int row, int column) const {  // an even column and the next
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(At(row, column));
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  }

  // a[m,k] = tile[m0 + m, k0 + k]; = tile[k0 + k, m0 + m].
  __device__ void LoadA(uint32_t (&a)[4], int m0, int k0) const {
    const int lane = Lane();
    LoadMatrices(a, At(m0 + lane % 16, k0 + lane / 16 * 8));
  }
  __device__ void LoadATransposed(uint32_t (&a)[4], int m0, int k0) const {
    const int lane = Lane(), matrix = lane / 8;
    LoadTransposed(a, At(k0 + lane % 8 + matrix / 2 * 8, m0 + matrix % 2 * 8));
  }
  // Two b side by side, {b0, b1, b0, b1}: b[k,n] = tile[n0 + n, k0 + k]; = tile[k0 + k, n0 + n].
  __device__ void LoadB(uint32_t (&b)[4], int k0, int n0) const {
    const int lane = Lane(), matrix = lane / 8;
    LoadMatrices(b, At(n0 + lane % 8 + matrix / 2 * 8, k0 + matrix % 2 * 8));
  }
  __device__ void LoadBTransposed(uint32_t (&b)[4], int k0, int n0) const {
    const int lane = Lane(), matrix = lane / 8;
    LoadTransposed(b, At(k0 + lane % 8 + matrix % 2 * 8, n0 + matrix / 2 * 8));
  }

  static __device__ int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
};

// Begins to fill kRows rows of a tile from rows that are `stride` elements apart; those from
// `count` on become zero. wide: rows are aligned to 16 bytes. By all threads of the block;
// WaitCopies and a barrier come before the tile is read.
template <int kRows, int kColumns, int kThreads>
__device__ __forceinline__ void FillTile(const Tile<kColumns>& tile, const std::byte* from,
                                         int64_t stride, int count, bool wide) {
  constexpr int kPieces = kColumns / 8;
  const uint16_t* const rows = reinterpret_cast<const uint16_t*>(from);
  for (int e = threadIdx.x; e < kRows * kPieces; e += kThreads) {
    const int row = e / kPieces, column = e % kPieces * 8;
    uint16_t* const to = tile.At(row, column);
    if (row >= count) {
      *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
    } else if (wide) {
      CopyAsync16(to, rows + row * stride + column);
    } else {
      for (int i = 0; i < 8; ++i) to[i] = rows[row * stride + column + i];
    }
  }
}

// Positions of a chunk, of head or group h.
template <int kColumns, int kThreads>
__device__ __forceinline__ void FillRows(const Tile<kColumns>& tile, const Sequence& s,
                                         const SsdArgs& a, const SsdPlace& p, int h) {
  FillTile<kQ, kColumns, kThreads>(tile, s.rows.data + 2 * RowAt(s, p.batch, p.begin(a), h),
                                   s.rows.stride, p.count(a), s.rows.wide);
}

// A state [P,N] of scratch.
template <int kThreads>
__device__ __forceinline__ void FillState(const Tile<kN>& tile, const void* states,
                                          const SsdArgs& a, const SsdPlace& p) {
  FillTile<kP, kN, kThreads>(tile, static_cast<const std::byte*>(states) + 2 * p.state(a), kN, kP,
                             true);
}

// Two neighbours of a row, rounded. wide: they are aligned to 4 bytes.
__device__ __forceinline__ void StorePair(std::byte* to, bool wide, float left, float right) {
  const uint32_t pair = PairOfBF16(left, right);
  if (wide) {
    *reinterpret_cast<uint32_t*>(to) = pair;
  } else {
    reinterpret_cast<uint16_t*>(to)[0] = static_cast<uint16_t>(pair);
    reinterpret_cast<uint16_t*>(to)[1] = static_cast<uint16_t>(pair >> 16);
  }
}

// A warp's 16 rows of kColumns/8 accumulators, to positions of a chunk.
template <int kTiles>
__device__ __forceinline__ void StoreRows(const Sequence& s, const SsdArgs& a, const SsdPlace& p,
                                          int h, int row, const float (&d)[kTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = row + lane / 4 + 8 * half;
    if (i >= p.count(a)) continue;
    std::byte* const to = s.rows.data + 2 * (RowAt(s, p.batch, p.begin(a) + i, h) + lane % 4 * 2);
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      StorePair(to + 16 * t, s.rows.wide, d[t][2 * half], d[t][2 * half + 1]);
  }
}

// Of a chunk of a head: sums of log2(e)*dt*A, and dt. In shared memory.
struct Steps {
  float decay[kQ], dt[kQ];

  // 2^(decay[i] - decay[j]), for j that may lie behind i, where it is not used.
  __device__ float Between(int i, int j) const { return exp2f(fminf(decay[i] - decay[j], 0.0f)); }
  __device__ float FromStart(int i) const { return exp2f(decay[i]); }
  __device__ float ToEnd(int j) const { return exp2f(decay[kQ - 1] - decay[j]); }
};
template <int kThreads>
__device__ __forceinline__ void FillSteps(Steps& steps, const SsdArgs& a, const SsdPlace& p) {
  for (int i = threadIdx.x; i < kQ; i += kThreads) {
    steps.decay[i] = static_cast<const float*>(a.decay)[p.position(a) + i];
    steps.dt[i] = a.steps_or_pairs[p.position(a) + i];
  }
}

// The sum over the four lanes that share rows of an accumulator.
__device__ __forceinline__ float QuadSum(float v) {
  v = __fadd_rn(v, __shfl_xor_sync(0xffffffffu, v, 1));
  return __fadd_rn(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

// kernels of more than 48 KiB of shared memory.
template <class... Parameters>
void AllowShared(void (*kernel)(Parameters...), size_t bytes) {
  MR_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes)));
}

}  // namespace millrace::cuda
