// Sums of 16 bytes of elements, or of one element, in rank order.
#pragma once

#include <cstdint>
#include <cstring>

#include "runtime/base/cuda/short_floats.cuh"
#include "runtime/base/dtype.h"

namespace millrace {

// One: an element as it lies in memory; Acc: what it is added in; kPack: elements in 16 bytes.
template <DType D>
struct SumTraits;
template <>
struct SumTraits<DType::kF32> {
  using One = float;
  using Acc = float;
};
template <>
struct SumTraits<DType::kBF16> {
  using One = uint16_t;
  using Acc = float;
};
template <>
struct SumTraits<DType::kF16> {
  using One = uint16_t;
  using Acc = float;
};
template <>
struct SumTraits<DType::kF64> {
  using One = double;
  using Acc = double;
};
template <DType D>
inline constexpr int kSumPack = 16 / static_cast<int>(sizeof(typename SumTraits<D>::One));

template <DType D>
struct RankSum {
  using One = typename SumTraits<D>::One;
  using Acc = typename SumTraits<D>::Acc;
  static constexpr int kPack = kSumPack<D>;

  static __device__ __forceinline__ Acc Widen(One one) {
    if constexpr (kIsFloatOf16Bits<D>)
      return LowShort<D>(one);
    else
      return one;
  }
  static __device__ __forceinline__ Acc Add(Acc a, Acc b) {
    if constexpr (D == DType::kF64)
      return __dadd_rn(a, b);
    else
      return __fadd_rn(a, b);
  }
  static __device__ __forceinline__ One Round(Acc a) {
    if constexpr (kIsFloatOf16Bits<D>)
      return static_cast<uint16_t>(PairOfShorts<D>(a, 0.0f));
    else
      return a;
  }

  Acc v[kPack];

  __device__ __forceinline__ void Begin(const uint4& raw) {
    One ones[kPack];
    memcpy(ones, &raw, sizeof raw);
#pragma unroll
    for (int i = 0; i < kPack; ++i) v[i] = Widen(ones[i]);
  }
  __device__ __forceinline__ void AddNext(const uint4& raw) {
    One ones[kPack];
    memcpy(ones, &raw, sizeof raw);
#pragma unroll
    for (int i = 0; i < kPack; ++i) v[i] = Add(v[i], Widen(ones[i]));
  }
  __device__ __forceinline__ uint4 Rounded() const {
    One ones[kPack];
#pragma unroll
    for (int i = 0; i < kPack; ++i) ones[i] = Round(v[i]);
    uint4 raw;
    memcpy(&raw, ones, sizeof raw);
    return raw;
  }
};

}  // namespace millrace
