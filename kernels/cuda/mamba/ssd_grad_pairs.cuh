// The pairs (i, j) of positions of a chunk in the gradient of the scan on tensor cores, for
// ssd_grad_cores.cu: those with i >= j count, in blocks of 16 rows j and 16 columns i.
#pragma once

#include "kernels/cuda/mamba/ssd_tiles.cuh"

namespace millrace::cuda {

inline constexpr int kGradThreads = 256, kGradWarps = kGradThreads / kWarp;

// Which blocks a warp has. Row r of blocks has 8 - r, the last ones of a chunk; of rows 0, 1 and 2
// the warps of the shortest rows take what is beyond five, so that no warp has more.
struct Share {
  static constexpr int kBlocks = kQ / 16, kMost = 5, kMostTaken = kBlocks - kMost;
  int own;    // the row that is the warp's, and its first column
  int other;  // the row whose last blocks it takes, or whose warp takes its own last ones
  int given;  // how many of its own blocks another warp has
  int taken;  // how many of `other` it has
  __device__ explicit Share(int warp)
      : own(warp),
        other(kBlocks - 1 - warp),
        given(max(kBlocks - warp - kMost, 0)),
        taken(max(warp + 1 - kMost, 0)) {}
};
static_assert(Share::kBlocks == kGradWarps);

// A warp's sums of [16, P] over blocks that it took, by lane, for the warp whose row it is.
struct TakenSums {
  float4 sums[Share::kMostTaken][kP / 8][kWarp];

  // Named barriers of the two warps; 0 is __syncthreads. Behind the one that reads comes another
  // barrier of the block before the next is given.
  __device__ void Give(int row, const float (&y)[kP / 8][4]) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int t = 0; t < kP / 8; ++t)
      sums[row][t][lane] = make_float4(y[t][0], y[t][1], y[t][2], y[t][3]);
    asm volatile("bar.arrive %0, %1;" : : "r"(1 + row), "n"(2 * kWarp) : "memory");
  }
  __device__ void AddTo(float (&y)[kP / 8][4], int row) const {
    asm volatile("bar.sync %0, %1;" : : "r"(1 + row), "n"(2 * kWarp) : "memory");
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int t = 0; t < kP / 8; ++t) {
      const float4 taken = sums[row][t][lane];
      y[t][0] = __fadd_rn(y[t][0], taken.x), y[t][1] = __fadd_rn(y[t][1], taken.y);
      y[t][2] = __fadd_rn(y[t][2], taken.z), y[t][3] = __fadd_rn(y[t][3], taken.w);
    }
  }
};

// What a lane's accumulators of [16, .] belong to: rows of its lower and upper half, and the first
// column of each tile of eight.
struct Lane {
  int lane, row, column;
  __device__ explicit Lane(int first_row)
      : lane(static_cast<int>(threadIdx.x) % kWarp),
        row(first_row + lane / 4),
        column(lane % 4 * 2) {}
  __device__ int Row(int e) const { return row + e / 2 * 8; }  // of element e of a tile
};

// d_x, and the gradients of a group's pairs c.b, transposed: a warp has 16 positions j.
struct XBuffers {
  uint16_t b[kQ * kN], c[kQ * kN];
  uint16_t x[2][kQ * kP], d_out[2][kQ * kP], d_state[2][kP * kN];
  Steps steps[2];
  float row_sums[kGradWarps][kQ];  // of pairs (i, j) of a warp's j, by i
  float column_sums[kQ];           // of all pairs (i, j), by j
  float d_sums[kGradWarps];
  // What blocks that were taken add to their row's sums: d_u, and those by j.
  TakenSums taken;
  float2 taken_columns[Share::kMostTaken][kWarp];
};

// The sums over a warp's 16 rows j, of tile columns i: lanes 0 to 3 have those of their two.
__device__ __forceinline__ float2 ColumnSums(const float (&z)[4]) {
  float low = __fadd_rn(z[0], z[2]), high = __fadd_rn(z[1], z[3]);
#pragma unroll
  for (int distance = 4; distance < kWarp; distance *= 2) {
    low = __fadd_rn(low, __shfl_xor_sync(0xffffffffu, low, distance));
    high = __fadd_rn(high, __shfl_xor_sync(0xffffffffu, high, distance));
  }
  return {low, high};
}

// One head's pairs (i, j) of 16 rows j, for blocks of 16 columns i whose pairs are in [first, end),
// those of i in i - shift: d_u += M^T d_out; d_pairs += dW^T; sums of dW[i,j] c[i].b[j] over i > j,
// by j to `columns` and by i to row_sums.
template <int kEnd>
__device__ __forceinline__ void Pairs(float (&d_u)[kP / 8][4], float (&d_pairs)[kQ / 8][4],
                                      float (&columns)[2], const float (&pairs)[kQ / 8][4],
                                      XBuffers& s, int buffer, int row, int first, int end,
                                      int shift) {
  const Lane l(row);
  const Steps& steps = s.steps[buffer];
  const Tile<kP> x{s.x[buffer]}, d_out{s.d_out[buffer]};
#pragma unroll
  for (int at = 0; at < kEnd; at += 16) {
    if (at < first || at >= end) continue;
    const int i0 = at + shift;
    float d_m[2][4] = {}, m[2][4];
#pragma unroll
    for (int k = 0; k < kP / 16; ++k) {
      uint32_t x_rows[4], b[4];  // loaded anew: registers are short
      x.LoadA(x_rows, row, 16 * k);
      d_out.LoadB(b, 16 * k, i0);
      Mma(d_m[0], x_rows, b[0], b[1]);
      Mma(d_m[1], x_rows, b[2], b[3]);
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      float z[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int j = l.Row(e), i = i0 + 8 * t + l.column + e % 2;
        const float between = i < j ? 0.0f : steps.Between(i, j);
        const float d_w = __fmul_rn(__fmul_rn(d_m[t][e], steps.dt[j]), between);
        const float pair = pairs[at / 8 + t][e];
        d_pairs[at / 8 + t][e] = __fadd_rn(d_pairs[at / 8 + t][e], d_w);
        z[e] = i > j ? __fmul_rn(d_w, pair) : 0.0f;
        columns[e / 2] = __fadd_rn(columns[e / 2], z[e]);
        m[t][e] = __fmul_rn(between, pair);
      }
      const float2 sums = ColumnSums(z);
      if (l.lane < 4) {
        s.row_sums[row / 16][i0 + 8 * t + l.column] = sums.x;
        s.row_sums[row / 16][i0 + 8 * t + l.column + 1] = sums.y;
      }
    }
    uint32_t left[4];
    FragmentOf(left, m[0], m[1]);
#pragma unroll
    for (int t = 0; t < kP / 8; t += 2) {
      uint32_t b[4];
      d_out.LoadBTransposed(b, i0, 8 * t);
      Mma(d_u[t], left, b[0], b[1]);
      Mma(d_u[t + 1], left, b[2], b[3]);
    }
  }
}

// The blocks that a warp has taken, for the warp whose row it is.
__device__ __forceinline__ void TakenPairs(const Share& share, float (&d_pairs)[kQ / 8][4],
                                           const float (&pairs)[kQ / 8][4], XBuffers& s,
                                           int buffer) {
  float d_u[kP / 8][4] = {}, columns[2] = {};
  Pairs<16 * Share::kMostTaken>(d_u, d_pairs, columns, pairs, s, buffer, 16 * share.other, 0,
                                16 * share.taken, 16 * (Share::kBlocks - share.taken));
  s.taken_columns[share.other][threadIdx.x % kWarp] = make_float2(columns[0], columns[1]);
  s.taken.Give(share.other, d_u);
}
__device__ __forceinline__ void AddTaken(const Share& share, float (&d_u)[kP / 8][4],
                                         float (&columns)[2], const XBuffers& s) {
  s.taken.AddTo(d_u, share.own);
  const float2 taken = s.taken_columns[share.own][threadIdx.x % kWarp];
  columns[0] = __fadd_rn(columns[0], taken.x), columns[1] = __fadd_rn(columns[1], taken.y);
}

}  // namespace millrace::cuda
