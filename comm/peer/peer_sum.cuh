// Sums of 16 or 8 bytes of elements, or of one element, in rank order.
#pragma once

#include <cstdint>
#include <cstring>

#include "runtime/base/cuda/short_floats.cuh"
#include "runtime/base/dtype.h"

namespace millrace {

// One: an element as it lies in memory; Acc: what it is added in.
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

// Raw: what is loaded and stored at once, uint4 or uint2; kPack: elements in it.
template <DType D, class Raw = uint4>
struct RankSum {
  using One = typename SumTraits<D>::One;
  using Acc = typename SumTraits<D>::Acc;
  static constexpr int kPack = static_cast<int>(sizeof(Raw) / sizeof(One));

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

  __device__ __forceinline__ void Begin(const Raw& raw) {
    One ones[kPack];
    memcpy(ones, &raw, sizeof raw);
#pragma unroll
    for (int i = 0; i < kPack; ++i) v[i] = Widen(ones[i]);
  }
  __device__ __forceinline__ void AddNext(const Raw& raw) {
    One ones[kPack];
    memcpy(ones, &raw, sizeof raw);
#pragma unroll
    for (int i = 0; i < kPack; ++i) v[i] = Add(v[i], Widen(ones[i]));
  }
  __device__ __forceinline__ Raw Rounded() const {
    One ones[kPack];
#pragma unroll
    for (int i = 0; i < kPack; ++i) ones[i] = Round(v[i]);
    Raw raw;
    memcpy(&raw, ones, sizeof raw);
    return raw;
  }
};

}  // namespace millrace
