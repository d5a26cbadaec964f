// Launches of grouped_wgmma.cuh, for the files that each have the kernels of one kind of operands.
#pragma once

#include "kernels/cuda/moe/grouped_wgmma.cuh"
#include "kernels/cuda/tensor_cores/tensor_map.h"
#include "runtime/base/arithmetic.h"

namespace millrace::cuda {

template <class T>
void LaunchWgmmaShape(const GroupedArgs& g, int64_t slots, unsigned* ticket, const Launch& launch) {
  const GroupedOperand &a = g.a, &b = g.b;
  CUtensorMap map_a, map_b;
  if constexpr (T::slots == Slots::kRows) {
    map_a = MapOfBF16(a.data, {g.k, slots, 1}, {a.mn, slots * a.mn}, kBoxRows);
    map_b = T::b == Lines::kDepth
                ? MapOfBF16(b.data, {g.k, g.n, g.experts}, {b.mn, b.expert}, T::kTileN)
                : MapOfBF16(b.data, {g.n, g.k, g.experts}, {b.k, b.expert}, kBoxDepth);
  } else {
    map_a = MapOfBF16(a.data, {g.m, slots, 1}, {a.k, slots * a.k}, kBoxDepth);
    map_b = MapOfBF16(b.data, {g.n, slots, 1}, {b.k, slots * b.k}, kBoxDepth);
  }
  MR_CUDA(cudaFuncSetAttribute(GroupedWgmmaKernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(WgmmaShared<T>)));
  LaunchKernel(launch, static_cast<unsigned>(launch.sms), T::kThreads, sizeof(WgmmaShared<T>),
               GroupedWgmmaKernel<T>, map_a, map_b, g, ticket);
}

// Tiles of 192 x 192, or of 128 x 256 where fewer columns are beyond the result then.
template <Slots S, bool kAcross, bool kOne>
void LaunchWgmmaTiles(const GroupedArgs& args, int64_t slots, unsigned* ticket,
                      const Launch& launch) {
  constexpr Lines kA = S == Slots::kRows ? Lines::kDepth : Lines::kRows,
                  kB = kAcross ? Lines::kRows : Lines::kDepth;
  if (RoundUp(args.n, 256) <= RoundUp(args.n, 192))
    LaunchWgmmaShape<WgmmaShape<S, kA, kB, 2, 256, 4, kOne>>(args, slots, ticket, launch);
  else
    LaunchWgmmaShape<WgmmaShape<S, kA, kB, 3, 192, 4, kOne>>(args, slots, ticket, launch);
}

template <Slots S, bool kAcross>
void LaunchGroupedWgmma(const GroupedArgs& args, int64_t slots, unsigned* ticket,
                        const Launch& launch) {
  if constexpr (S == Slots::kRows && !kAcross)
    if (args.offsets == nullptr)
      return LaunchWgmmaTiles<S, kAcross, true>(args, slots, ticket, launch);
  LaunchWgmmaTiles<S, kAcross, false>(args, slots, ticket, launch);
}

}  // namespace millrace::cuda
