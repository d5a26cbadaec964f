// Walking over a flat view by units: W neighbouring elements that a thread moves in one access of
// at most 16 bytes. W is 4 where a view is f32, 8 where all have 16 bits, 1 where one is not
// aligned. Neighbours of a warp take neighbouring units, so that every access fills whole sectors
// of 32 bytes. (A pack of f32 is two accesses of half-sectors: loads find the other half in L1,
// but stores go to L2 one by one.)
#pragma once

#include <cstring>

#include "kernels/cuda/pack.cuh"

namespace millrace::cuda {

inline constexpr int kFlatThreads = 256;

template <int kBytes>
struct WordOf;
template <>
struct WordOf<2> {
  using type = uint16_t;
};
template <>
struct WordOf<4> {
  using type = uint32_t;
};
template <>
struct WordOf<8> {
  using type = uint2;
};
template <>
struct WordOf<16> {
  using type = uint4;
};
template <Elements E, int W>
using Unit = typename WordOf<W*(kIsShort<E> ? 2 : 4)>::type;

template <Elements E, int W>
__device__ __forceinline__ Unit<E, W> LoadUnit(const Rows& rows, int64_t unit) {
  return reinterpret_cast<const Unit<E, W>*>(rows.data)[unit];
}
template <Elements E, int W>
__device__ __forceinline__ void StoreUnit(const Rows& rows, int64_t unit, Unit<E, W> value) {
  reinterpret_cast<Unit<E, W>*>(rows.data)[unit] = value;
}

template <Elements E, int W>
__device__ __forceinline__ void Widen(const Unit<E, W>& unit, float (&v)[W]) {
  if constexpr (E == Elements::kF32) {
    memcpy(v, &unit, sizeof unit);
  } else if constexpr (W == 1) {
    v[0] = LowOf<E>(unit);
  } else {
    uint32_t pairs[W / 2];
    memcpy(pairs, &unit, sizeof unit);
#pragma unroll
    for (int i = 0; i < W; ++i)
      v[i] = i % 2 == 0 ? LowOf<E>(pairs[i / 2]) : HighOf<E>(pairs[i / 2]);
  }
}

// Rounds once.
template <Elements E, int W>
__device__ __forceinline__ Unit<E, W> Narrow(const float (&v)[W]) {
  Unit<E, W> unit;
  if constexpr (E == Elements::kF32) {
    memcpy(&unit, v, sizeof unit);
  } else if constexpr (W == 1) {
    unit = static_cast<uint16_t>(PairOf<E>(v[0], 0.0f));
  } else {
    uint32_t pairs[W / 2];
#pragma unroll
    for (int i = 0; i < W / 2; ++i) pairs[i] = PairOf<E>(v[2 * i], v[2 * i + 1]);
    memcpy(&unit, pairs, sizeof unit);
  }
  return unit;
}

}  // namespace millrace::cuda
