// Device side of rows.h: packs of eight elements between memory and registers,
// and sums in a fixed order.
//
// Arithmetic  __fadd_rn and its like where two kernels, or two instances of one, must give the same
//             bits: the compiler never fuses those into multiply-adds.
#pragma once

#include <cstdint>

#include "kernels/cuda/rows.h"
#include "runtime/base/cuda/short_floats.cuh"
#include "runtime/base/dtype.h"

namespace millrace::cuda {

inline constexpr int kWarp = 32;

// A pack as it lies in memory: four words of pairs of 16 bits, or eight of f32. Loading and
// converting are apart so that a kernel can have many loads in flight.
template <Elements E>
struct Raw {
  uint4 low, high;
};
template <Elements E>
requires kIsShort<E>
struct Raw<E> {
  uint4 low;
};

// Sixteen bytes that are read once: past the first cache.
__device__ __forceinline__ uint4 ReadOnce(const uint16_t* p) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

struct Floats {
  float v[kPack];
};

// Whether the rows' elements have 16 bits, in E's format of those.
template <Elements E>
__device__ __forceinline__ bool AreShort(const Rows& rows) {
  if constexpr (E == Elements::kAny) return rows.bf16;
  if constexpr (E == Elements::kAnyF16) return rows.f16;
  return kIsShort<E>;
}

__device__ __forceinline__ uint32_t PairOfBF16(float low, float high) {
  return PairOfShorts<DType::kBF16>(low, high);
}

// Of E's format of 16 bits.
template <Elements E>
inline constexpr DType kShortDType = kMixOf<E> == Elements::kAny ? DType::kBF16 : DType::kF16;

template <Elements E>
__device__ __forceinline__ uint32_t PairOf(float low, float high) {
  return PairOfShorts<kShortDType<E>>(low, high);
}
template <Elements E>
__device__ __forceinline__ float LowOf(uint32_t pair) {
  return LowShort<kShortDType<E>>(pair);
}
template <Elements E>
__device__ __forceinline__ float HighOf(uint32_t pair) {
  return HighShort<kShortDType<E>>(pair);
}

// Elements [at, at + min(n, 8)) of the view; the rest of the pack is zero. n > 0.
template <Elements E>
__device__ __forceinline__ Raw<E> LoadRaw(const Rows& rows, int64_t at, int n) {
  Raw<E> raw{};
  if (AreShort<E>(rows)) {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(rows.data) + at;
    if (rows.wide && n >= kPack) {
      raw.low = *reinterpret_cast<const uint4*>(p);
    } else {
      uint32_t w[4] = {};
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        if (i < n) w[i / 2] |= static_cast<uint32_t>(p[i]) << (16 * (i % 2));
      raw.low = make_uint4(w[0], w[1], w[2], w[3]);
    }
  } else if constexpr (!kIsShort<E>) {
    const uint32_t* p = reinterpret_cast<const uint32_t*>(rows.data) + at;
    if (rows.wide && n >= kPack) {
      raw.low = *reinterpret_cast<const uint4*>(p);
      raw.high = *reinterpret_cast<const uint4*>(p + 4);
    } else {
      uint32_t w[kPack] = {};
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        if (i < n) w[i] = p[i];
      raw.low = make_uint4(w[0], w[1], w[2], w[3]);
      raw.high = make_uint4(w[4], w[5], w[6], w[7]);
    }
  }
  return raw;
}

template <Elements E>
__device__ __forceinline__ void StoreRaw(const Rows& rows, int64_t at, int n, const Raw<E>& raw) {
  if (AreShort<E>(rows)) {
    uint16_t* p = reinterpret_cast<uint16_t*>(rows.data) + at;
    if (rows.wide && n >= kPack) {
      *reinterpret_cast<uint4*>(p) = raw.low;
    } else {
      const uint32_t w[4] = {raw.low.x, raw.low.y, raw.low.z, raw.low.w};
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        if (i < n) p[i] = static_cast<uint16_t>(w[i / 2] >> (16 * (i % 2)));
    }
  } else if constexpr (!kIsShort<E>) {
    uint32_t* p = reinterpret_cast<uint32_t*>(rows.data) + at;
    if (rows.wide && n >= kPack) {
      *reinterpret_cast<uint4*>(p) = raw.low;
      *reinterpret_cast<uint4*>(p + 4) = raw.high;
    } else {
      const uint32_t w[kPack] = {raw.low.x,  raw.low.y,  raw.low.z,  raw.low.w,
                                 raw.high.x, raw.high.y, raw.high.z, raw.high.w};
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        if (i < n) p[i] = w[i];
    }
  }
}

template <Elements E>
__device__ __forceinline__ Floats ToFloats(const Rows& rows, const Raw<E>& raw) {
  const uint32_t low[4] = {raw.low.x, raw.low.y, raw.low.z, raw.low.w};
  Floats f;
  if (AreShort<E>(rows)) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      f.v[2 * i] = LowOf<E>(low[i]);
      f.v[2 * i + 1] = HighOf<E>(low[i]);
    }
  } else if constexpr (!kIsShort<E>) {
    const uint32_t high[4] = {raw.high.x, raw.high.y, raw.high.z, raw.high.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      f.v[i] = __uint_as_float(low[i]);
      f.v[4 + i] = __uint_as_float(high[i]);
    }
  }
  return f;
}

// Eight of bf16.
__device__ __forceinline__ void ToFloats(const uint4& raw, float (&f)[kPack]) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    f[2 * i] = __uint_as_float(words[i] << 16);
    f[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

// Rounds once.
template <Elements E>
__device__ __forceinline__ Raw<E> FromFloats(const Rows& rows, const Floats& f) {
  Raw<E> raw{};
  if (AreShort<E>(rows)) {
    raw.low = make_uint4(PairOf<E>(f.v[0], f.v[1]), PairOf<E>(f.v[2], f.v[3]),
                         PairOf<E>(f.v[4], f.v[5]), PairOf<E>(f.v[6], f.v[7]));
  } else if constexpr (!kIsShort<E>) {
    raw.low = make_uint4(__float_as_uint(f.v[0]), __float_as_uint(f.v[1]), __float_as_uint(f.v[2]),
                         __float_as_uint(f.v[3]));
    raw.high = make_uint4(__float_as_uint(f.v[4]), __float_as_uint(f.v[5]), __float_as_uint(f.v[6]),
                          __float_as_uint(f.v[7]));
  }
  return raw;
}

// One element of a view, at most once rounded. The view is Rows, or has an AreShort<E> of its own.
template <Elements E, class V>
__device__ __forceinline__ float LoadOne(const V& view, int64_t at) {
  if (!AreShort<E>(view)) return reinterpret_cast<const float*>(view.data)[at];
  return LowOf<E>(reinterpret_cast<const uint16_t*>(view.data)[at]);
}
template <Elements E, class V>
__device__ __forceinline__ void StoreOne(const V& view, int64_t at, float value) {
  if (AreShort<E>(view))
    reinterpret_cast<uint16_t*>(view.data)[at] = static_cast<uint16_t>(PairOf<E>(value, 0.0f));
  else
    reinterpret_cast<float*>(view.data)[at] = value;
}

// What follows is computed from the value anew, not kept in registers from what came before.
__device__ __forceinline__ void Forget(float& v) { asm volatile("" : "+f"(v)); }
__device__ __forceinline__ void Forget(Floats& f) {
#pragma unroll
  for (int i = 0; i < kPack; ++i) Forget(f.v[i]);
}
__device__ __forceinline__ void Forget(uint4& w) {
  asm volatile("" : "+r"(w.x), "+r"(w.y), "+r"(w.z), "+r"(w.w));
}
template <Elements E>
__device__ __forceinline__ void Forget(Raw<E>& raw) {
  Forget(raw.low);
  if constexpr (!kIsShort<E>) Forget(raw.high);
}

template <Elements E>
__device__ __forceinline__ Floats Load(const Rows& rows, int64_t at, int n) {
  return ToFloats<E>(rows, LoadRaw<E>(rows, at, n));
}

template <Elements E>
__device__ __forceinline__ void Store(const Rows& rows, int64_t at, int n, const Floats& f) {
  StoreRaw<E>(rows, at, n, FromFloats<E>(rows, f));
}

// = or +=, the addition in f32 with one rounding.
template <Elements E>
__device__ __forceinline__ void StoreOrAdd(const Rows& rows, int64_t at, int n, Floats f,
                                           bool accumulate) {
  if (accumulate) {
    const Floats old = Load<E>(rows, at, n);
#pragma unroll
    for (int i = 0; i < kPack; ++i) f.v[i] = __fadd_rn(old.v[i], f.v[i]);
  }
  Store<E>(rows, at, n, f);
}

__device__ __forceinline__ int32_t TokenAt(const TokenRows& tokens, int64_t b, int64_t t) {
  const int64_t at = b * tokens.batch_stride + t * tokens.length_stride;
  return tokens.data[tokens.scalars->token_parity * tokens.parity_stride + at];
}
__device__ __forceinline__ int32_t TokenAt(const TokenRows& tokens, int64_t row) {
  return TokenAt(tokens, row / tokens.length, row % tokens.length);
}

__device__ __forceinline__ float SumOfPack(const Floats& f) {
  return __fadd_rn(__fadd_rn(__fadd_rn(f.v[0], f.v[1]), __fadd_rn(f.v[2], f.v[3])),
                   __fadd_rn(__fadd_rn(f.v[4], f.v[5]), __fadd_rn(f.v[6], f.v[7])));
}

// The sum over a warp, the same bits in every lane.
__device__ __forceinline__ float WarpSum(float v) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2)
    v = __fadd_rn(v, __shfl_xor_sync(0xffffffffu, v, lane));
  return v;
}
__device__ __forceinline__ double WarpSum(double v) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2)
    v = __dadd_rn(v, __shfl_xor_sync(0xffffffffu, v, lane));
  return v;
}

// The sum of this lane's and all lower lanes' numbers.
__device__ __forceinline__ int InclusiveSum(int v) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int down = 1; down < kWarp; down *= 2) {
    const int lower = __shfl_up_sync(0xffffffffu, v, down);
    if (lane >= down) v += lower;
  }
  return v;
}

// The sum over a block of at most 1024 threads, in thread 0 only. `shared` holds 32 doubles.
__device__ __forceinline__ double BlockSum(double v, double* shared) {
  v = WarpSum(v);
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            warps = static_cast<int>(blockDim.x) / kWarp;
  if (threadIdx.x % kWarp == 0) shared[warp] = v;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int w = 1; w < warps; ++w) v = __dadd_rn(v, shared[w]);
  return v;
}

}  // namespace millrace::cuda
