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
  // OfFragment. Here and below m0, k0 and n0 are two parts each, of which the second should be
  // known when a kernel is compiled: a lane then has one address for all of those.
  __device__ void LoadA(uint32_t (&a)[4], int m0, int m1, int k0, int k1) const {
    const int lane = Lane();
    LoadMatrices(a, Piece(lane % 16, lane / 16, m0, m1, k0, k1));
  }
  __device__ void LoadATransposed(uint32_t (&a)[4], int m0, int m1, int k0, int k1) const {
    const int lane = Lane(), matrix = lane / 8;
    LoadTransposed(a, Piece(lane % 8 + matrix / 2 * 8, matrix % 2, k0, k1, m0, m1));
  }
  // Two b side by side, {b0, b1, b0, b1}: b[k,n] = tile[n0 + n, k0 + k]; = tile[k0 + k, n0 + n].
  __device__ void LoadB(uint32_t (&b)[4], int k0, int k1, int n0, int n1) const {
    const int lane = Lane(), matrix = lane / 8;
    LoadMatrices(b, Piece(lane % 8 + matrix / 2 * 8, matrix % 2, n0, n1, k0, k1));
  }
  __device__ void LoadBTransposed(uint32_t (&b)[4], int k0, int k1, int n0, int n1) const {
    const int lane = Lane(), matrix = lane / 8;
    LoadTransposed(b, Piece(lane % 8 + matrix % 2 * 8, matrix / 2, k0, k1, n0, n1));
  }

  // Of At(row0 + row1 + row, column0 + column1 + 8 * piece), where piece is 0 or 1, rows are
  // multiples of 8, columns of 16 that share no bits. Tiles are aligned to their rows' bytes.
  __device__ uint32_t Piece(int row, int piece, int row0, int row1, int column0,
                            int column1) const {
    const uint32_t own = SharedAddress(data) + 2 * kColumns * row + 16 * (piece ^ (row % 8));
    return (((own ^ (2 * column0)) + 2 * kColumns * row0) ^ (2 * column1)) + 2 * kColumns * row1;
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
                                         int stride, int count, bool wide) {
  constexpr int kPieces = kColumns / 8, kStep = kThreads / kPieces;  // rows at a time
  static_assert(kRows % kStep == 0 && kStep % 8 == 0);
  const int thread = Anew(static_cast<int>(threadIdx.x)), first = thread / kPieces,
            column = thread % kPieces * 8;
  const std::byte* piece = from + 2 * (int64_t{first} * stride + column);
  const int64_t step = int64_t{2 * kStep} * stride;
  uint16_t* const to = tile.At(first, column);
  if (wide) {
    const uint32_t shared = SharedAddress(to);
#pragma unroll
    for (int row = 0; row < kRows; row += kStep, piece += step)
      CopyAsync16(shared + 2 * kColumns * row, piece, first + row < count);
  } else {
#pragma unroll 1
    for (int row = 0; row < kRows; row += kStep, piece += step)
#pragma unroll 1
      for (int i = 0; i < 8; ++i)
        to[kColumns * row + i] =
            first + row < count ? reinterpret_cast<const uint16_t*>(piece)[i] : uint16_t{0};
  }
}

// Rows of a chunk, of a head or a group.
struct RowsOfChunk {
  std::byte* data;
  int stride, count;  // elements from row to row
  bool wide;

  // Of head or group h.
  __device__ RowsOfChunk(const Sequence& s, const SsdArgs& a, const SsdPlace& p, int h)
      : RowsOfChunk(s.rows.data + 2 * RowAt(s, p.batch, p.begin(a), h), s, p.count(a), 0) {}
  // Of head h of a group, whose first head's rows begin at `first`.
  __device__ RowsOfChunk(std::byte* first, const Sequence& s, int rows, int h)
      : data(first + int64_t{2 * h} * static_cast<int>(s.head_stride)),
        stride(static_cast<int>(s.rows.stride)),
        count(rows),
        wide(s.rows.wide) {}
  // Of scratch: [rows, kN].
  __device__ RowsOfChunk(std::byte* first, int rows)
      : data(first), stride(kN), count(rows), wide(true) {}

  template <int kThreads, int kColumns>
  __device__ void Fill(const Tile<kColumns>& tile) const {
    FillTile<kQ, kColumns, kThreads>(tile, data, stride, count, wide);
  }
  __device__ std::byte* At(int row, int column) const {
    return data + 2 * (int64_t{row} * stride + column);
  }
};
// Begins to fill a tile with a state [P,N].
template <int kThreads>
__device__ __forceinline__ void FillState(const Tile<kN>& tile, const std::byte* state) {
  FillTile<kP, kN, kThreads>(tile, state, kN, kP, true);
}

// What a chunk of a group's first head has in memory. It is kept in shared memory: to find it takes
// longer than to step from head to head.
struct FirstHead {
  std::byte *x, *out, *d_x, *before, *behind;
  const float *decay, *dt;
  float *spans, *state_span;
  int count;  // of the chunk's positions

  __device__ void Init(const SsdArgs& a, const SsdPlace& p) {
    x = RowsOfChunk(a.x, a, p, p.head).data, out = RowsOfChunk(a.out, a, p, p.head).data;
    d_x = RowsOfChunk(a.d_x, a, p, p.head).data;
    before = static_cast<std::byte*>(a.states_before) + 2 * p.state(a);
    behind = static_cast<std::byte*>(a.states_behind) + 2 * p.state(a);
    decay = static_cast<const float*>(a.decay) + p.position(a);
    dt = a.steps_or_pairs + p.position(a);
    spans = a.spans + 4 * p.position(a), state_span = a.state_spans + p.of_head(a);
    count = p.count(a);
  }
  // Those of head h of the group.
  __device__ const std::byte* Before(int h) const { return before + int64_t{h} * (2 * kP * kN); }
  __device__ const std::byte* Behind(int h) const { return behind + int64_t{h} * (2 * kP * kN); }
  __device__ int64_t Positions(const SsdArgs& a, int h) const {
    return int64_t{h} * (a.chunks * a.rows);
  }
  __device__ float* Spans(const SsdArgs& a, int h) const { return spans + 4 * Positions(a, h); }
};

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

// A warp's 16 rows of kTiles accumulators, a multiple of four, to columns from `column` on.
template <int kTiles>
__device__ __forceinline__ void StoreRows(const RowsOfChunk& rows, int row, int column,
                                          const float (&d)[kTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = row + lane / 4 + 8 * half;
    std::byte* const to = rows.At(i, column + lane % 4 * 8);
#pragma unroll
    for (int t = 0; t < kTiles; t += 4) {
      uint32_t pairs[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) pairs[k] = PairOfBF16(d[t + k][2 * half], d[t + k][2 * half + 1]);
      const uint4 eight = QuadTransposed(pairs);
      if (i >= rows.count) continue;
      if (rows.wide) {
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
// As FillTile, of head h. The arrays begin at multiples of kQ.
__device__ __forceinline__ void FillSteps(Steps& steps, const FirstHead& first, const SsdArgs& a,
                                          int h) {
  constexpr int kPieces = kQ / 4;
  const int piece = Anew(static_cast<int>(threadIdx.x));
  if (piece >= 2 * kPieces) return;
  const bool of_dt = piece >= kPieces;
  const int e = piece % kPieces * 4;
  CopyAsync16((of_dt ? steps.dt : steps.decay) + e,
              (of_dt ? first.dt : first.decay) + first.Positions(a, h) + e);
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
