// The largest magnitudes of packs, as bits of f32, of which FP8's scales are made
// (kernels/ops/fp8_ops.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/pack.cuh"

namespace millrace::cuda {

// Whether there may be an operand `magnitude`: of what FP8 goes with (magnitude.h).
template <Elements E>
inline constexpr bool kMayHaveMagnitude = kMixOf<E> == Elements::kAny;

inline constexpr uint32_t kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u;

// Magnitudes' bits are ordered as magnitudes are. Those of bf16 are looked at in pairs.
template <Elements E>
__device__ __forceinline__ uint32_t LargerWord(uint32_t most, uint32_t word) {
  if constexpr (E == Elements::kBF16) return __vmaxu2(most, word & 0x7fff7fffu);
  return max(most, word & kMagnitude);
}

// The largest magnitude of packs: Get gives its bits as f32 has them, those of an infinity or a NaN
// where there is one.
template <Elements E>
struct Most {
  uint32_t bits = 0;

  __device__ __forceinline__ void Add(const Raw<E>& x) {
    const auto add = [&](uint32_t word) { bits = LargerWord<E>(bits, word); };
    add(x.low.x), add(x.low.y), add(x.low.z), add(x.low.w);
    if constexpr (E != Elements::kBF16) add(x.high.x), add(x.high.y), add(x.high.z), add(x.high.w);
  }
  __device__ __forceinline__ uint32_t Get() const {
    if constexpr (E == Elements::kBF16) return max(bits & 0xffff0000u, bits << 16);
    return bits;
  }
  static __device__ __forceinline__ uint32_t Of(const Raw<E>& x) {
    Most most;
    most.Add(x);
    return most.Get();
  }
};

// The same of each element of packs.
template <Elements E>
struct MostOfColumns {
  static constexpr int kWords = E == Elements::kBF16 ? 4 : 8;
  uint32_t bits[kWords] = {};

  __device__ __forceinline__ void Add(const Raw<E>& x) {
    const auto add = [&](int at, const uint4& words) {
      bits[at] = LargerWord<E>(bits[at], words.x);
      bits[at + 1] = LargerWord<E>(bits[at + 1], words.y);
      bits[at + 2] = LargerWord<E>(bits[at + 2], words.z);
      bits[at + 3] = LargerWord<E>(bits[at + 3], words.w);
    };
    add(0, x.low);
    if constexpr (E != Elements::kBF16) add(4, x.high);
  }
  __device__ __forceinline__ void Get(uint32_t (&most)[kPack]) const {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      if constexpr (E == Elements::kBF16)
        most[i] = i % 2 == 0 ? bits[i / 2] << 16 : bits[i / 2] & 0xffff0000u;
      else
        most[i] = bits[i];
    }
  }
};

__device__ __forceinline__ bool IsFinite(float v) {
  return (__float_as_uint(v) & kMagnitude) < kInfinity;
}
// Of a finite number its magnitude's bits; else 0.
__device__ __forceinline__ uint32_t FiniteBits(float v) {
  return IsFinite(v) ? __float_as_uint(v) & kMagnitude : 0;
}

// The bits of the largest finite magnitude of a pack that has others, too.
template <Elements E>
__device__ __forceinline__ uint32_t MostFinite(const Rows& rows, const Raw<E>& x) {
  const Floats values = ToFloats<E>(rows, x);
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < kPack; ++i) most = max(most, FiniteBits(values.v[i]));
  return most;
}

// Raises an operand `magnitude` (kernels/ops/model_ops.h) to the largest bits that a thread of the
// grid has. Every thread of a block calls it, once. A maximum does not depend on the order of
// blocks.
__device__ __forceinline__ void RaiseMagnitude(uint32_t most, uint32_t* magnitude) {
  __shared__ uint32_t of_warp[kWarp];
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  const int warps = static_cast<int>(blockDim.y * blockDim.x) / kWarp;
  most = __reduce_max_sync(0xffffffffu, most);
  if (thread % kWarp == 0) of_warp[thread / kWarp] = most;
  __syncthreads();
  if (thread >= kWarp) return;
  most = __reduce_max_sync(0xffffffffu, thread < warps ? of_warp[thread] : 0);
  if (thread == 0 && most > 0) atomicMax(magnitude, most);
}

// Of what a thread stores the largest finite magnitude.
template <Elements E>
class StoredMagnitude {
 public:
  // The first n elements of a pack.
  __device__ __forceinline__ void Add(const Rows& rows, const Raw<E>& x, int n) {
    if (n < kPack) {
      const Floats values = ToFloats<E>(rows, x);
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        if (i < n) most_ = max(most_, FiniteBits(values.v[i]));
      return;
    }
    if constexpr (E != Elements::kF32 && E != Elements::kBF16) {
      most_ = max(most_, MostFinite<E>(rows, x));
    } else {
      const uint32_t most = Most<E>::Of(x);
      most_ = max(most_, most < kInfinity ? most : MostFinite<E>(rows, x));
    }
  }

  __device__ __forceinline__ void Raise(uint32_t* magnitude) const {
    RaiseMagnitude(most_, magnitude);
  }

 private:
  uint32_t most_ = 0;
};

}  // namespace millrace::cuda
