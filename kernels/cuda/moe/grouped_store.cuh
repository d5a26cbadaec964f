// How sums of a grouped product that lie in wgmma's accumulators reach its result: = or +=, in one
// rounding, 16 bytes of a row at a time.
#pragma once

#include "kernels/cuda/moe/grouped_order.cuh"
#include "kernels/cuda/pack.cuh"

namespace millrace::cuda {

// Exchanges `a` of lanes whose bit `distance` is set with `b` of the others, `distance` away.
__device__ __forceinline__ void Exchange(uint32_t& a, uint32_t& b, int distance) {
  const bool set = (threadIdx.x & distance) != 0;
  const uint32_t other = __shfl_xor_sync(0xffffffffu, set ? a : b, distance);
  (set ? a : b) = other;
}
// Lane q of four gives word q of four chunks and gets the four words of chunk q; its own inverse.
__device__ __forceinline__ void TransposeWords(uint4& w) {
  Exchange(w.x, w.y, 1);
  Exchange(w.z, w.w, 1);
  Exchange(w.x, w.z, 2);
  Exchange(w.y, w.w, 2);
}
// Even lanes give two words each of chunks 0 and 1 and get four of chunk 0, odd ones four of chunk
// 1; its own inverse.
__device__ __forceinline__ void PairWords(uint4& w) {
  Exchange(w.x, w.z, 1);
  Exchange(w.y, w.w, 1);
}

// A warp's 16 rows of the result, kN columns; a lane's sums as in tensor_cores/wgmma.cuh. Columns
// are a multiple of eight.
template <int kN>
class ResultRows {
 public:
  __device__ ResultRows(const GroupedArgs& g, const StagedTile& t, Slots slots, int first_row)
      : g_(g),
        rows_(t.rows - first_row),
        columns_(min(kN, g.n - t.n0)),
        at_((slots == Slots::kRows ? t.first_slot * g.out_row : t.expert * g.out_expert) +
            (t.m0 + first_row) * g.out_row + t.n0) {}

  // What is there will soon be added to.
  __device__ __forceinline__ void Prefetch() const {
    const int row = static_cast<int>(threadIdx.x) % kWarp;
    if (!g_.accumulate || row >= min(rows_, 16)) return;
    const int bytes = g_.out_bf16 ? 2 : 4;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;"
                 :
                 : "l"(g_.out + (at_ + row * g_.out_row) * bytes), "r"(columns_ * bytes)
                 : "memory");
  }

  // n0: the first column.
  __device__ __forceinline__ void AddBias(float (&sums)[kN / 2], int n0) const {
    const int q = static_cast<int>(threadIdx.x) % 4;
    const auto* const bias = reinterpret_cast<const uint32_t*>(g_.bias) + n0 / 2 + q;
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      const uint32_t pair = 8 * j < columns_ ? __ldg(bias + 4 * j) : 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float &low = sums[4 * j + 2 * half], &high = sums[4 * j + 2 * half + 1];
        low = __fadd_rn(low, __uint_as_float(pair << 16));
        high = __fadd_rn(high, __uint_as_float(pair & 0xffff0000u));
      }
    }
  }

  __device__ __forceinline__ void Store(const float (&sums)[kN / 2]) const {
    const bool bf16 = g_.out_bf16;
    if (g_.accumulate)
      bf16 ? StoreBF16<true>(sums) : StoreF32<true>(sums);
    else
      bf16 ? StoreBF16<false>(sums) : StoreF32<false>(sums);
  }

 private:
  static_assert(kN % 32 == 0);
  // Rounds of so many chunks whose old values are on their way at once.
  static constexpr int kRound = 3;

  // A lane has chunk q of four chunks of eight columns.
  template <bool kAdd>
  __device__ __forceinline__ void StoreBF16(const float (&sums)[kN / 2]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, q = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + 8 * half;
      std::byte* const to = g_.out + 2 * (at_ + row * g_.out_row + 8 * q);
      const auto inside = [&](int j) { return row < rows_ && 8 * (j + q) < columns_; };
#pragma unroll
      for (int first = 0; first < kN / 8; first += 4 * kRound) {
        uint4 old[kRound];
#pragma unroll
        for (int r = 0; r < kRound; ++r) {
          const int j = first + 4 * r;
          if (kAdd && j < kN / 8)
            old[r] = inside(j) ? *reinterpret_cast<const uint4*>(to + 16 * j) : uint4{};
        }
#pragma unroll
        for (int r = 0; r < kRound; ++r) {
          const int j = first + 4 * r;
          if (j >= kN / 8) continue;
          if (kAdd) TransposeWords(old[r]);
          const auto word = [&](int i, uint32_t before) {
            float low = sums[4 * (j + i) + 2 * half], high = sums[4 * (j + i) + 2 * half + 1];
            if (kAdd) {
              low = __fadd_rn(__uint_as_float(before << 16), low);
              high = __fadd_rn(__uint_as_float(before & 0xffff0000u), high);
            }
            return PairOfBF16(low, high);
          };
          uint4 w = {word(0, old[r].x), word(1, old[r].y), word(2, old[r].z), word(3, old[r].w)};
          TransposeWords(w);
          if (inside(j)) *reinterpret_cast<uint4*>(to + 16 * j) = w;
        }
      }
    }
  }

  // An even lane has four columns of the first of two chunks, an odd one of the second.
  template <bool kAdd>
  __device__ __forceinline__ void StoreF32(const float (&sums)[kN / 2]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, odd = lane % 2, pair = lane % 4 / 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + 8 * half;
      std::byte* const to = g_.out + 4 * (at_ + row * g_.out_row + 8 * odd + 4 * pair);
      const auto inside = [&](int j) { return row < rows_ && 8 * (j + odd) < columns_; };
#pragma unroll
      for (int first = 0; first < kN / 8; first += 2 * kRound) {
        float4 old[kRound];
#pragma unroll
        for (int r = 0; r < kRound; ++r) {
          const int j = first + 2 * r;
          if (kAdd && j < kN / 8)
            old[r] = inside(j) ? *reinterpret_cast<const float4*>(to + 32 * j) : float4{};
        }
#pragma unroll
        for (int r = 0; r < kRound; ++r) {
          const int j = first + 2 * r;
          if (j >= kN / 8) continue;
          const float* const s = sums + 4 * j + 2 * half;
          uint4 w = {__float_as_uint(s[0]), __float_as_uint(s[1]), __float_as_uint(s[4]),
                     __float_as_uint(s[5])};
          PairWords(w);
          float4 sum = {__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z),
                        __uint_as_float(w.w)};
          if (kAdd)
            sum = {__fadd_rn(old[r].x, sum.x), __fadd_rn(old[r].y, sum.y),
                   __fadd_rn(old[r].z, sum.z), __fadd_rn(old[r].w, sum.w)};
          if (inside(j)) *reinterpret_cast<float4*>(to + 32 * j) = sum;
        }
      }
    }
  }

  const GroupedArgs& g_;
  const int rows_, columns_;  // that there are
  const int64_t at_;
};

}  // namespace millrace::cuda
