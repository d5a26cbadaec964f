// What kernels of attention by warpgroups share: tiles that are copied, and results of a warp's 16
// rows, as products leave them, on their way to memory by lines of such tiles (wgmma.cuh).
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/tensor_cores/mma.cuh"
#include "kernels/cuda/tensor_cores/tensor_map.h"
#include "kernels/cuda/tensor_cores/wgmma.cuh"

namespace millrace::cuda {

// The same in all lanes, and known to be so: what follows from it is formed once for a warp.
__device__ __forceinline__ int Uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

__device__ __forceinline__ void WarpgroupBarrier(int barrier) {
  asm volatile("bar.sync %0, %1;" : : "r"(barrier), "n"(kWarpgroup) : "memory");
}

__device__ __forceinline__ void StoreMatrices(uint32_t row, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(row), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
__device__ __forceinline__ uint4 ReadShared16(uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}

// Lanes' 16 bytes of a warp's four 8x8 matrices, two below each other and then to the right, of
// lines from `tile` on: those of 16 columns `step`, where LoadMatrices and StoreMatrices have them.
__device__ __forceinline__ uint32_t MatrixAt(uint32_t tile, int first_line, int step) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, matrix = lane / 8, row = lane % 8;
  const int line = first_line + matrix % 2 * 8 + row;
  const uint32_t first = tile + static_cast<uint32_t>(line * kLineBytes + (matrix / 2 ^ row) * 16);
  return first ^ static_cast<uint32_t>(step * 32);
}

// x * factor, of [16, D] as sums lie in a warp's lanes, to lines `line` to `line` + 15 of the tile,
// in boxes of 64 columns `box_bytes` apart.
template <int kDepth>
__device__ __forceinline__ void StageRows(uint32_t tile, int box_bytes, int line,
                                          const float (&x)[kDepth / 2], float factor) {
#pragma unroll
  for (int step = 0; step < kDepth / 16; ++step) {
    uint32_t r[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      r[i] = PairOfBF16(x[8 * step + 2 * i] * factor, x[8 * step + 2 * i + 1] * factor);
    StoreMatrices(MatrixAt(tile + step / 4 * box_bytes, line, step % 4), r);
  }
}

// The same on their way to 16 rows. Nobody else touches these lines; once the object is there its
// warp does not either.
template <int kDepth>
class StagedRows {
 public:
  __device__ __forceinline__ StagedRows(uint32_t tile, int box_bytes, int line,
                                        const float (&x)[kDepth / 2], float factor)
      : lane_(static_cast<int>(threadIdx.x) % kWarp) {
    StageRows<kDepth>(tile, box_bytes, line, x, factor);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16 / kAtOnce; ++i) {
      const int of = line + i * kAtOnce + lane_ / kChunks, chunk = lane_ % kChunks;
#pragma unroll
      for (int box = 0; box < kBoxes; ++box)
        pieces_[i][box] =
            ReadShared16(tile + box * box_bytes + of * kLineBytes + (chunk ^ of % 8) * 16);
    }
    __syncwarp();
  }

  // To rows `row` and on, of one head, that are below `rows`.
  __device__ __forceinline__ void Store(const AttentionHeads& to, int64_t batch, int head, int row,
                                        int rows) const {
#pragma unroll
    for (int i = 0; i < 16 / kAtOnce; ++i) {
      const int t = row + i * kAtOnce + lane_ / kChunks;
      uint16_t* const at = reinterpret_cast<uint16_t*>(to.data) + batch * to.batch_stride +
                           t * to.row_stride + head * to.head_stride + lane_ % kChunks * kPack;
#pragma unroll
      for (int box = 0; box < kBoxes; ++box)
        if (t < rows) *reinterpret_cast<uint4*>(at + box * kBoxDepth) = pieces_[i][box];
    }
  }

 private:
  static constexpr int kChunks = kLineBytes / 16, kAtOnce = kWarp / kChunks,
                       kBoxes = kDepth / kBoxDepth;
  const int lane_;
  uint4 pieces_[16 / kAtOnce][kBoxes];
};

// Heads of a sequence's rows, as tiles of `box_rows` of them are copied.
inline CUtensorMap MapOfHeads(const AttentionHeads& x, const AttentionSizes& sizes, int heads,
                              int box_rows) {
  // The stride of a dimension of one is never used, but the driver looks at it.
  const int64_t width = int64_t{heads} * sizes.depth,
                row_stride = sizes.length > 1  ? x.row_stride
                             : sizes.batch > 1 ? x.batch_stride
                                               : width,
                batch_stride = sizes.batch > 1 ? x.batch_stride : sizes.length * row_stride;
  return MapOfBF16(x.data, {width, sizes.length, sizes.batch}, {row_stride, batch_stride},
                   box_rows);
}

}  // namespace millrace::cuda
