// Products that more than one of the scan's kernels on tensor cores forms, and their first passes.
#pragma once

#include "kernels/cuda/mamba/ssd_tiles.cuh"

namespace millrace::cuda {

// pairs[j] += left[row.., :] . right[j + shift, :] for blocks of 16 columns j in [first, end), over
// N: of c and b, or of b and c. A warp's 16 rows.
__device__ __forceinline__ void PairsOfRows(float (&pairs)[kQ / 8][4], const Tile<kN>& left,
                                            const Tile<kN>& right, int row, int first, int end,
                                            int shift = 0) {
#pragma unroll 2
  for (int k = 0; k < kN; k += 16) {
    uint32_t x[4];
    left.LoadA(x, row, k);
#pragma unroll
    for (int t = 0; t < kQ / 8; t += 2) {
      if (8 * t < first || 8 * t >= end) continue;
      uint32_t b[4];
      right.LoadB(b, k, 8 * t + shift);
      Mma(pairs[t], x, b[0], b[1]);
      Mma(pairs[t + 1], x, b[2], b[3]);
    }
  }
}

// y[p] += left[row.., :] . state[p, :]: of a warp's 16 rows.
__device__ __forceinline__ void ProductOfRows(float (&y)[kP / 8][4], const Tile<kN>& left,
                                              const Tile<kN>& state, int row) {
#pragma unroll 2
  for (int k = 0; k < kN; k += 16) {
    uint32_t x[4];
    left.LoadA(x, row, k);
#pragma unroll
    for (int t = 0; t < kP / 8; t += 2) {
      uint32_t b[4];
      state.LoadB(b, k, 8 * t);
      Mma(y[t], x, b[0], b[1]);
      Mma(y[t + 1], x, b[2], b[3]);
    }
  }
}

// Decays and steps by head; the states before each chunk, or their gradients behind it.
void LaunchSsdSteps(const SsdArgs& args, const Launch& launch);
template <bool kGradient>
void LaunchSsdStates(const SsdArgs& args, const Launch& launch);

// d_b, d_c, d_dt and sums of d_a_log, once d_x and the gradients of pairs are there.
void LaunchSsdGroupGradients(const SsdArgs& args, const Launch& launch);

}  // namespace millrace::cuda
