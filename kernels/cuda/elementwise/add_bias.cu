#include <algorithm>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/elementwise/elementwise_launch.h"
#include "kernels/cuda/flat.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

// out[r] = x[r] + bias, packs of eight: blockIdx.y strides over rows, x over the packs of a row.
template <Elements Mix>
__global__ void __launch_bounds__(kFlatThreads)
    AddBiasKernel(const Rows x, const Rows bias, const Rows out, const int64_t rows,
                  const int columns) {
  BeginKernel();
  const int c = static_cast<int>(blockIdx.x * kFlatThreads + threadIdx.x) * kPack,
            left = columns - c;
  if (left <= 0) return;
  const Floats b = Load<Mix>(bias, c, left);
  for (int64_t r = blockIdx.y; r < rows; r += gridDim.y) {
    Floats sum = Load<Mix>(x, r * x.stride + c, left);
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum.v[i] = __fadd_rn(sum.v[i], b.v[i]);
    Store<Mix>(out, r * out.stride + c, left, sum);
  }
}

}  // namespace

void LaunchAddBias(const Rows& x, const Rows& bias, const Rows& out, int64_t rows, int64_t columns,
                   const Launch& launch) {
  if (rows == 0 || columns == 0) return;
  constexpr int64_t kMostBlocks = 65535;  // of a grid's second dimension
  const dim3 grid(static_cast<unsigned>(CeilDiv(Packs(columns), kFlatThreads)),
                  static_cast<unsigned>(std::min(rows, kMostBlocks)));
  WithMixOf(ElementsOf({x, bias, out}), [&]<Elements Mix>() {
    LaunchKernel(launch, grid, kFlatThreads, 0, AddBiasKernel<Mix>, x, bias, out, rows,
                 static_cast<int>(columns));
  });
}

}  // namespace millrace::cuda
