// What the kernels of one_row.h and row_chain.h share, so that they have the same bits: a product's
// row, and what becomes of a unit's sums.
#pragma once

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/matmul/one_row.h"
#include "kernels/cuda/pack.cuh"

namespace millrace::cuda::one_row {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;  // that form a row

__device__ __forceinline__ uint4 OfFloats(const float (&f)[kPack]) {
  return make_uint4(PairOfBF16(f[0], f[1]), PairOfBF16(f[2], f[3]), PairOfBF16(f[4], f[5]),
                    PairOfBF16(f[6], f[7]));
}
__device__ __forceinline__ float RoundToBF16(float v) {
  return __uint_as_float(PairOfBF16(v, 0.0f) << 16);
}
__device__ __forceinline__ float OfBF16(uint16_t v) { return __uint_as_float(uint32_t{v} << 16); }

__device__ __forceinline__ void CopyToShared(uint4* to, const uint16_t* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from));
}

// What this kernel's blocks may have written is read past the first cache.
template <bool kOwn>
__device__ __forceinline__ uint4 ReadPack(const uint16_t* p) {
  if constexpr (!kOwn) return *reinterpret_cast<const uint4*>(p);
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// The sum over the threads that form a row, the same bits in all of the block. turn: 0, 1, ... of
// the calls of a row.
__device__ __forceinline__ float SumOfBlock(float own, int turn) {
  __shared__ float of_warp[2][kWarps];
  own = WarpSum(own);
  if (threadIdx.x < kThreads && threadIdx.x % kWarp == 0) of_warp[turn][threadIdx.x / kWarp] = own;
  __syncthreads();
  float all = of_warp[turn][0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) all = __fadd_rn(all, of_warp[turn][w]);
  return all;
}

// The product's row, in shared memory: packs of y, then of the norm's weight and bias.
__device__ __forceinline__ int FirstPack(int packs) {
  return threadIdx.x < kThreads ? static_cast<int>(threadIdx.x) : packs;
}
__device__ __forceinline__ void FetchNorm(const OneRowArgs& a, uint4* row) {
  const int packs = a.depth / kPack;
#pragma unroll 2
  for (int p = FirstPack(packs); p < packs; p += kThreads) {
    CopyToShared(row + packs + p, a.norm_weight + p * kPack);
    if (a.norm_bias != nullptr) CopyToShared(row + 2 * packs + p, a.norm_bias + p * kPack);
  }
}

// Threads have the same packs in each pass over the row. Called by the whole block, behind
// FetchNorm where there is a norm; the row is there behind a barrier of the block.
template <bool kOwn>
__device__ __forceinline__ void FormRow(const OneRowArgs& a, uint4* row) {
  const int packs = a.depth / kPack, first = FirstPack(packs);
  const bool layer = a.norm == RowNorm::kLayer;
  float sum = 0;
#pragma unroll 2
  for (int p = first; p < packs; p += kThreads) {
    uint4 raw = ReadPack<kOwn>(a.x + p * kPack);
    float s[kPack];
    ToFloats(raw, s);
    if (a.residual != nullptr) {
      float r[kPack];
      ToFloats(ReadPack<kOwn>(a.residual + p * kPack), r);
#pragma unroll
      for (int i = 0; i < kPack; ++i) s[i] = __fadd_rn(s[i], r[i]);
      raw = OfFloats(s);
      ToFloats(raw, s);
      if (blockIdx.x == 0) reinterpret_cast<uint4*>(a.sum)[p] = raw;
    }
    row[p] = raw;
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum = layer ? __fadd_rn(sum, s[i]) : __fmaf_rn(s[i], s[i], sum);
  }
  if (a.norm == RowNorm::kNone) return;
  const float columns = static_cast<float>(a.depth);
  float mean = 0, squares = SumOfBlock(sum, 0);
  if (layer) {
    mean = __fdiv_rn(squares, columns);
    float own = 0;
    for (int p = first; p < packs; p += kThreads) {
      float s[kPack];
      ToFloats(row[p], s);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float deviation = __fsub_rn(s[i], mean);
        own = __fmaf_rn(deviation, deviation, own);
      }
    }
    squares = SumOfBlock(own, 1);
  }
  const float rstd = rsqrtf(__fadd_rn(__fdiv_rn(squares, columns), a.eps));
  asm volatile("cp.async.wait_all;" : : : "memory");  // this thread's packs of FetchNorm
  for (int p = first; p < packs; p += kThreads) {
    float s[kPack], weight[kPack];
    ToFloats(row[p], s);
    ToFloats(row[packs + p], weight);
#pragma unroll
    for (int i = 0; i < kPack; ++i)
      s[i] = __fmul_rn(__fmul_rn(__fsub_rn(s[i], mean), rstd), weight[i]);
    if (a.norm_bias != nullptr) {
      float bias[kPack];
      ToFloats(row[2 * packs + p], bias);
#pragma unroll
      for (int i = 0; i < kPack; ++i) s[i] = __fadd_rn(s[i], bias[i]);
    }
    row[p] = OfFloats(s);
  }
}

// The first column of a unit: halves of heads lie between those of kRotate.
__device__ __forceinline__ int ColumnOf(const OneRowArgs& a, RowFinish finish, int unit) {
  return finish == RowFinish::kRotate ? unit + unit / a.gap * a.gap : unit;
}

template <RowFinish kFinish>
inline constexpr int kLinesOf =
    kFinish == RowFinish::kSwiglu || kFinish == RowFinish::kRotate ? 2 : 1;

// Stores what the sums of a unit's lines give.
template <RowFinish kFinish>
__device__ __forceinline__ void StoreUnit(const OneRowArgs& a, int unit, int column,
                                          const float (&sum)[kLinesOf<kFinish>], float2 turn) {
  constexpr int kLines = kLinesOf<kFinish>;
  float out[kLines];
#pragma unroll
  for (int h = 0; h < kLines; ++h) out[h] = RoundToBF16(sum[h]);
  if constexpr (kFinish == RowFinish::kSwiglu)
    out[0] = Activate<ActivationKind::kSwiglu>(out[0], out[1]);
  if constexpr (kFinish == RowFinish::kGelu) out[0] = Activate<ActivationKind::kGelu>(out[0], 0.0f);
  if constexpr (kFinish == RowFinish::kRotate)
    if (unit < a.turned) {  // attention/rope.cu
      const float low = out[0], high = out[1];
      out[0] = __fsub_rn(__fmul_rn(low, turn.x), __fmul_rn(high, turn.y));
      out[1] = __fadd_rn(__fmul_rn(high, turn.x), __fmul_rn(low, turn.y));
    }
  if constexpr (kFinish == RowFinish::kNone)
    if (a.out_f32) {
      reinterpret_cast<float*>(a.out)[column] = out[0];
      return;
    }
  uint16_t* const to = reinterpret_cast<uint16_t*>(a.out) + column;
  to[0] = static_cast<uint16_t>(PairOfBF16(out[0], 0.0f));
  if constexpr (kFinish == RowFinish::kRotate)
    to[a.gap] = static_cast<uint16_t>(PairOfBF16(out[1], 0.0f));
}

}  // namespace millrace::cuda::one_row
