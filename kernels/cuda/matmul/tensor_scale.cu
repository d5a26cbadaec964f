#include <algorithm>

#include "kernels/cuda/magnitude.cuh"
#include "kernels/cuda/matmul/float8.cuh"
#include "kernels/cuda/matmul/quantize_launch.h"
#include "kernels/cuda/pack.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 256, kBlocksPerSm = 4;
// 128 bytes that a thread loads before it looks at the first.
template <Elements E>
inline constexpr int kPacks = E == Elements::kBF16 ? 8 : 4;

// The last block to come makes the scale of what all have found, and zeroes the ticket.
template <Elements E>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    TensorScaleKernel(const TensorScaleArgs a, const int64_t packs_per_row, const int64_t packs) {
  BeginKernel();
  __shared__ uint32_t of_warp[kThreads / kWarp];
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  uint32_t most = 0;
  for (int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x; first < packs;
       first += stride * kPacks<E>) {
    Raw<E> raw[kPacks<E>];
#pragma unroll
    for (int u = 0; u < kPacks<E>; ++u) {
      const int64_t pack = first + u * stride;
      raw[u] = {};
      if (pack >= packs) continue;
      const int64_t row = packs_per_row == packs ? 0 : pack / packs_per_row,
                    column = (pack - row * packs_per_row) * kPack;
      raw[u] = LoadRaw<E>(a.x, row * a.x.stride + column,
                          static_cast<int>(min(a.columns - column, int64_t{kPack})));
    }
    Most<E> of_turn;
#pragma unroll
    for (int u = 0; u < kPacks<E>; ++u) of_turn.Add(raw[u]);
    if (of_turn.Get() < kInfinity) {
      most = max(most, of_turn.Get());
      continue;
    }
#pragma unroll
    for (int u = 0; u < kPacks<E>; ++u) most = max(most, MostFinite<E>(a.x, raw[u]));
  }
  most = __reduce_max_sync(0xffffffffu, most);
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = most;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < kThreads / kWarp; ++w) most = max(most, of_warp[w]);
  atomicMax(a.ticket, most);
  __threadfence();
  if (atomicAdd(a.ticket + 1, 1u) != gridDim.x - 1) return;
  __threadfence();
  const uint32_t of_all = atomicExch(a.ticket, 0u);
  *a.scale = a.powers ? ScaleFor<true>(of_all, a.largest) : ScaleFor<false>(of_all, a.largest);
  a.ticket[1] = 0;
}

}  // namespace

void LaunchTensorScale(const TensorScaleArgs& args, Elements elements, const Launch& launch) {
  TensorScaleArgs a = args;
  if (a.x.stride == a.columns && a.columns % kPack == 0)  // rows that follow each other are one
    a.columns *= a.rows, a.rows = 1;
  const int64_t packs_per_row = Packs(a.columns), packs = packs_per_row * a.rows;
  const auto blocks = static_cast<unsigned>(
      std::clamp<int64_t>(CeilDiv(packs, kThreads), 1, int64_t{launch.sms} * kBlocksPerSm));
  const auto with = [&]<Elements E>() {
    LaunchKernel(launch, blocks, kThreads, 0, TensorScaleKernel<E>, a, packs_per_row, packs);
  };
  if (elements == Elements::kBF16)
    with.template operator()<Elements::kBF16>();
  else
    with.template operator()<Elements::kF32>();
}

}  // namespace millrace::cuda
