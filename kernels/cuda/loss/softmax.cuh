// The largest element of a row and the sum of exponentials, over threads that have packs of it.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/pack.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {

inline constexpr int kUnroll = 4;  // packs that a thread takes at a time

inline constexpr float kLog2E = 1.44269504088896341f;

// e^z for z <= 0, relatively within (4 + 1.5 |z|) units of 2^-24; 0 below the normal range.
__device__ __forceinline__ float Exp(float z) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(__fmul_rn(z, kLog2E)));
  return y;
}

// The larger in each half of a word, of E's format of 16 bits; NaNs lose.
template <Elements E>
__device__ __forceinline__ uint32_t LargerOfPair(uint32_t a, uint32_t b) {
  uint32_t larger;
  if constexpr (E == Elements::kBF16)
    asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  else
    asm("max.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

template <Elements E>
__device__ __forceinline__ float Largest(const Raw<E>& raw) {
  if constexpr (kIsShort<E>) {
    const uint32_t pair = LargerOfPair<E>(LargerOfPair<E>(raw.low.x, raw.low.y),
                                          LargerOfPair<E>(raw.low.z, raw.low.w));
    return fmaxf(LowOf<E>(pair), HighOf<E>(pair));
  } else {
    const Floats x = ToFloats<E>(Rows{}, raw);
    float largest = x.v[0];
#pragma unroll
    for (int i = 1; i < kPack; ++i) largest = fmaxf(largest, x.v[i]);
    return largest;
  }
}

// A pack whose elements from `left` on take no part: -infinity.
template <Elements E>
__device__ __forceinline__ void MaskFrom(Raw<E>& raw, int left) {
  Floats x = ToFloats<E>(Rows{}, raw);
#pragma unroll
  for (int i = 0; i < kPack; ++i)
    if (i >= left) x.v[i] = -INFINITY;
  raw = FromFloats<E>(Rows{}, x);
}

// Over some elements: `sum` is that of e^(x - max); over none: -infinity, 0. NaNs do not
// enter max, but poison sum.
struct Softmax {
  float max, sum;

  // What x - max may subtract while all elements so far are -infinity.
  __device__ static float Base(float max) { return max == -INFINITY ? 0.0f : max; }

  // The first n packs.
  template <Elements E>
  __device__ void Add(const Raw<E> (&raw)[kUnroll], int n) {
    float largest = max;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (u < n) largest = fmaxf(largest, Largest(raw[u]));
    const float base = Base(largest);
    float added = 0;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u >= n) break;
      Floats x = ToFloats<E>(Rows{}, raw[u]);
#pragma unroll
      for (int i = 0; i < kPack; ++i) x.v[i] = Exp(__fsub_rn(x.v[i], base));
      added = __fadd_rn(added, SumOfPack(x));
    }
    sum = __fadd_rn(__fmul_rn(sum, Exp(__fsub_rn(max, base))), added);
    max = largest;
  }
  // Commutative bit for bit.
  __device__ void Join(Softmax other) {
    const float largest = fmaxf(max, other.max), base = Base(largest);
    sum = __fadd_rn(__fmul_rn(sum, Exp(__fsub_rn(max, base))),
                    __fmul_rn(other.sum, Exp(__fsub_rn(other.max, base))));
    max = largest;
  }
  // Over the lanes of a warp, the same bits in each.
  __device__ void JoinLanes() {
#pragma unroll
    for (int lane = kWarp / 2; lane > 0; lane /= 2)
      Join({__shfl_xor_sync(0xffffffffu, max, lane), __shfl_xor_sync(0xffffffffu, sum, lane)});
  }
};

// Joined over the block, the same bits in every thread.
__device__ __forceinline__ Softmax BlockJoin(Softmax s, Softmax (&of_warp)[kWarp]) {
  const int warps = static_cast<int>(blockDim.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  s.JoinLanes();
  if (lane == 0) of_warp[threadIdx.x / kWarp] = s;
  __syncthreads();
  s = lane < warps ? of_warp[lane] : Softmax{-INFINITY, 0};
  s.JoinLanes();
  return s;
}

}  // namespace millrace::cuda
