// Tiles of bf16 in shared memory, as the scan's kernels on tensor cores have them, and their
// fragments (tensor_cores/mma.cuh).
#pragma once

#include "kernels/cuda/mamba/ssd_device.cuh"
#include "kernels/cuda/tensor_cores/exp2.cuh"
#include "kernels/cuda/tensor_cores/mma.cuh"
#include "kernels/cuda/tensor_cores/tma.cuh"
#include "runtime/base/cuda/cuda_check.h"

namespace millrace::cuda {

// The sizes that SsdOnTensorCores asks for.
inline constexpr int kQ = static_cast<int>(kSsdChunk), kP = static_cast<int>(kSsdChannels),
                     kN = static_cast<int>(kSsdStates);

// The same value, of which the compiler knows nothing: what follows from it is computed where it is
// used, rather than once ahead of a loop and then kept in registers, which are short.
__device__ __forceinline__ int Anew(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// Rows of kColumns, a multiple of 64. Pieces of 16 bytes of row r are permuted by r % 8, so that
// eight rows' pieces of the same columns lie in different banks.
template <int kColumns>
struct Tile {
  uint16_t* data;

  __device__ uint16_t* At(int row, int column) const {
    return data + row * kColumns + (((column / 8) ^ (row % 8)) * 8) + column % 8;
  }
  // a[m,k] = tile[m0 + m, k0 + k]; = tile[k0 + k, m0 + m]. The former as two d side by side, too:
  // OfFragment.
  __device__ void LoadA(uint32_t (&a)[4], int m0, int k0) const {
    const int lane = Lane();
    LoadMatrices(a, Piece(lane % 16, lane / 16, m0, k0));
  }
  __device__ void LoadATransposed(uint32_t (&a)[4], int m0, int k0) const {
    const int lane = Lane(), matrix = lane / 8;
    LoadTransposed(a, Piece(lane % 8 + matrix / 2 * 8, matrix % 2, k0, m0));
  }
  // Two b side by side, {b0, b1, b0, b1}: b[k,n] = tile[n0 + n, k0 + k]; = tile[k0 + k, n0 + n].
  __device__ void LoadB(uint32_t (&b)[4], int k0, int n0) const {
    const int lane = Lane(), matrix = lane / 8;
    LoadMatrices(b, Piece(lane % 8 + matrix / 2 * 8, matrix % 2, n0, k0));
  }
  __device__ void LoadBTransposed(uint32_t (&b)[4], int k0, int n0) const {
    const int lane = Lane(), matrix = lane / 8;
    LoadTransposed(b, Piece(lane % 8 + matrix % 2 * 8, matrix / 2, k0, n0));
  }

  // Of At(row0 + row, column0 + 8 * piece), where piece is 0 or 1, row0 a multiple of 8 and column0
  // of 16: what a lane has of its own is the same for all row0 and column0. Tiles are aligned to
  // their rows' bytes.
  __device__ uint32_t Piece(int row, int piece, int row0, int column0) const {
    const uint32_t own = SharedAddress(data) + 2 * kColumns * row + 16 * (piece ^ (row % 8));
    return (own ^ (2 * column0)) + 2 * kColumns * row0;
  }
  static __device__ int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
};

// Two neighbours of an a: element e of d t, and e + 1, if a is two d side by side.
__device__ __forceinline__ float2 OfFragment(const uint32_t (&a)[4], int t, int e) {
  const uint32_t pair = a[2 * t + e / 2];
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

// Begins to fill kRows rows of a tile from rows that are `stride` elements apart; those from
// `count` on become zero. wide: rows are aligned to 16 bytes; else all is there on return. By all
// threads of the block; WaitCopies and a barrier come before the tile is read.
template <int kRows, int kColumns, int kThreads>
__device__ __forceinline__ void FillTile(const Tile<kColumns>& tile, const std::byte* from,
                                         int64_t stride, int count, bool wide) {
  constexpr int kPieces = kColumns / 8, kStep = kThreads / kPieces;  // rows at a time
  static_assert(kRows % kStep == 0 && kStep % 8 == 0);
  const int thread = Anew(static_cast<int>(threadIdx.x)), first = thread / kPieces,
            column = thread % kPieces * 8;
  const std::byte* piece = from + 2 * (first * stride + column);
  uint16_t* const to = tile.At(first, column);
  if (wide) {
    const uint32_t shared = SharedAddress(to);
#pragma unroll
    for (int row = 0; row < kRows; row += kStep, piece += 2 * kStep * stride)
      CopyAsync16(shared + 2 * kColumns * row, piece, first + row < count);
  } else {
#pragma unroll 1
    for (int row = 0; row < kRows; row += kStep, piece += 2 * kStep * stride)
#pragma unroll 1
      for (int i = 0; i < 8; ++i)
        to[kColumns * row + i] =
            first + row < count ? reinterpret_cast<const uint16_t*>(piece)[i] : uint16_t{0};
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

// Two neighbours of a row of scratch, rounded.
__device__ __forceinline__ void StorePair(std::byte* to, float left, float right) {
  *reinterpret_cast<uint32_t*>(to) = PairOfBF16(left, right);
}

// Of four tiles of columns side by side, lane q of the four that share rows has a pair of columns
// of each; it gets all four pairs of tile q.
__device__ __forceinline__ uint4 QuadTransposed(const uint32_t (&pairs)[4]) {
  const bool odd = threadIdx.x % 2 == 1, upper = threadIdx.x % 4 >= 2;
  const uint32_t from_low = __shfl_xor_sync(0xffffffffu, odd ? pairs[0] : pairs[1], 1),
                 from_high = __shfl_xor_sync(0xffffffffu, odd ? pairs[2] : pairs[3], 1);
  // Of tile 0 or 1, and of 2 or 3: the pairs of this lane and of its neighbour, in order.
  const uint32_t low[2] = {odd ? from_low : pairs[0], odd ? pairs[1] : from_low},
                 high[2] = {odd ? from_high : pairs[2], odd ? pairs[3] : from_high};
  const uint32_t first = __shfl_xor_sync(0xffffffffu, upper ? low[0] : high[0], 2),
                 second = __shfl_xor_sync(0xffffffffu, upper ? low[1] : high[1], 2);
  return upper ? make_uint4(first, second, high[0], high[1])
               : make_uint4(low[0], low[1], first, second);
}

// A warp's 16 rows of kTiles accumulators, a multiple of four, to positions of a chunk: columns
// from `column` on.
template <int kTiles>
__device__ __forceinline__ void StoreRows(const Sequence& s, const SsdArgs& a, const SsdPlace& p,
                                          int h, int row, int column, const float (&d)[kTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = row + lane / 4 + 8 * half;
    std::byte* const to =
        s.rows.data + 2 * (RowAt(s, p.batch, p.begin(a) + i, h) + column + lane % 4 * 8);
#pragma unroll
    for (int t = 0; t < kTiles; t += 4) {
      uint32_t pairs[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) pairs[k] = PairOfBF16(d[t + k][2 * half], d[t + k][2 * half + 1]);
      const uint4 eight = QuadTransposed(pairs);
      if (i >= p.count(a)) continue;
      if (s.rows.wide) {
        *reinterpret_cast<uint4*>(to + 16 * t) = eight;
      } else {
        uint64_t left = eight.x | uint64_t{eight.y} << 32, next = eight.z | uint64_t{eight.w} << 32;
#pragma unroll 1
        for (int k = 0; k < 8; ++k, left = left >> 16 | next << 48, next >>= 16)
          reinterpret_cast<uint16_t*>(to + 16 * t)[k] = static_cast<uint16_t>(left);
      }
    }
  }
}

// Of a chunk of a head: sums of log2(e)*dt*A, and dt. In shared memory.
struct Steps {
  float decay[kQ], dt[kQ];

  __device__ float FromStart(int i) const { return Exp2(decay[i]); }
  __device__ float ToEnd(int j) const { return Exp2(decay[kQ - 1] - decay[j]); }
};
// As FillTile. The arrays begin at multiples of kQ.
__device__ __forceinline__ void FillSteps(Steps& steps, const SsdArgs& a, const SsdPlace& p) {
  constexpr int kPieces = kQ / 4;
  const int e = threadIdx.x % kPieces * 4;
  if (threadIdx.x < kPieces)
    CopyAsync16(steps.decay + e, static_cast<const float*>(a.decay) + p.position(a) + e);
  else if (threadIdx.x < 2 * kPieces)
    CopyAsync16(steps.dt + e, a.steps_or_pairs + p.position(a) + e);
}

// Heads of a group on their way to shared memory: kStages buffers, each with a barrier that all
// threads arrive at once their copies are there. wide: no thread has anything but copies.
inline constexpr int kStages = 3;
template <int kThreads>
struct Stages {
  uint64_t barriers[kStages];

  // By one thread; then a barrier of the block.
  __device__ void Init() {
    for (uint64_t& barrier : barriers) InitBarrier(SharedAddress(&barrier), kThreads);
  }
  // Behind a thread's copies for head h.
  __device__ void Filled(int h, bool wide) {
    const uint32_t barrier = SharedAddress(barriers + h % kStages);
    if (wide) {
      ArriveBehindCopies(barrier);
    } else {
      CommitCopies();
      WaitCopies<0>();
      Arrive(barrier);
    }
  }
  __device__ void Wait(int h) { WaitFor(SharedAddress(barriers + h % kStages), h / kStages % 2); }
};

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
