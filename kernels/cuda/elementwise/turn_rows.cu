#include <algorithm>
#include <cstdint>

#include "kernels/cuda/elementwise/elementwise_launch.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr int kTile = 32, kTileRows = 8;  // of a block's threads

// out[c * out_ld + r] = x[r * x_ld + c], by tiles that shared memory turns: both sides are read and
// written along neighbours. blockIdx.x counts tiles of columns, y strides over those of rows.
template <class T>
__global__ void __launch_bounds__(kTile* kTileRows)
    TurnRowsKernel(const T* __restrict__ x, T* __restrict__ out, const int64_t rows,
                   const int64_t columns, const int64_t x_ld, const int64_t out_ld) {
  BeginKernel();
  __shared__ T tile[kTile][kTile + 1];
  const int along = static_cast<int>(threadIdx.x) % kTile,
            across = static_cast<int>(threadIdx.x) / kTile;
  const int64_t left = int64_t{blockIdx.x} * kTile;
  for (int64_t top = int64_t{blockIdx.y} * kTile; top < rows; top += int64_t{gridDim.y} * kTile) {
    for (int i = across; i < kTile; i += kTileRows)
      if (top + i < rows && left + along < columns)
        tile[i][along] = x[(top + i) * x_ld + left + along];
    __syncthreads();
    for (int i = across; i < kTile; i += kTileRows)
      if (left + i < columns && top + along < rows)
        out[(left + i) * out_ld + top + along] = tile[along][i];
    __syncthreads();
  }
}

template <class T>
void LaunchOf(const std::byte* x, std::byte* out, const TurnedRows& turned, const Launch& launch) {
  constexpr int64_t kMostBlocks = 65535;  // of a grid's second dimension
  const dim3 grid(static_cast<unsigned>(CeilDiv(turned.columns, kTile)),
                  static_cast<unsigned>(std::min(CeilDiv(turned.rows, kTile), kMostBlocks)));
  LaunchKernel(launch, grid, kTile * kTileRows, 0, TurnRowsKernel<T>, reinterpret_cast<const T*>(x),
               reinterpret_cast<T*>(out), turned.rows, turned.columns, turned.x_ld, turned.out_ld);
}

}  // namespace

void LaunchTurnRows(const std::byte* x, std::byte* out, const TurnedRows& turned,
                    const Launch& launch) {
  if (turned.rows == 0 || turned.columns == 0) return;
  switch (turned.size) {
    case 1:
      return LaunchOf<uint8_t>(x, out, turned, launch);
    case 2:
      return LaunchOf<uint16_t>(x, out, turned, launch);
    case 4:
      return LaunchOf<uint32_t>(x, out, turned, launch);
    default:
      return LaunchOf<uint64_t>(x, out, turned, launch);
  }
}

}  // namespace millrace::cuda
