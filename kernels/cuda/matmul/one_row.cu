#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/matmul/one_row.h"
#include "kernels/cuda/pack.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kPass = kWarp * kPack;  // elements of a line that a warp reads at once
constexpr int kAhead = 8;             // packs of a thread that are in flight

__device__ __forceinline__ void ToFloats(const uint4& raw, float (&f)[kPack]) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    f[2 * i] = __uint_as_float(words[i] << 16);
    f[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}
__device__ __forceinline__ uint4 OfFloats(const float (&f)[kPack]) {
  return make_uint4(PairOfBF16(f[0], f[1]), PairOfBF16(f[2], f[3]), PairOfBF16(f[4], f[5]),
                    PairOfBF16(f[6], f[7]));
}
__device__ __forceinline__ const uint16_t* HalvesOf(const Rows& rows) {
  return reinterpret_cast<const uint16_t*>(rows.data);
}
__device__ __forceinline__ float RoundToBF16(float v) {
  return __uint_as_float(PairOfBF16(v, 0.0f) << 16);
}

__device__ __forceinline__ void CopyToShared(uint4* to, const uint16_t* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from));
}

// The block's sum, the same bits in all threads. turn: 0, 1, ... of the block's calls.
__device__ __forceinline__ float SumOfBlock(float own, int turn) {
  __shared__ float of_warp[2][kWarps];
  own = WarpSum(own);
  if (threadIdx.x % kWarp == 0) of_warp[turn][threadIdx.x / kWarp] = own;
  __syncthreads();
  float all = of_warp[turn][0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) all = __fadd_rn(all, of_warp[turn][w]);
  return all;
}

// The product's row, in shared memory: packs of y, then of the norm's weight and bias.
__device__ __forceinline__ void FetchNorm(const OneRowArgs& a, uint4* row) {
  const int packs = a.depth / kPack;
  for (int p = static_cast<int>(threadIdx.x); p < packs; p += kThreads) {
    CopyToShared(row + packs + p, HalvesOf(a.norm_weight) + p * kPack);
    if (a.norm_bias.data != nullptr)
      CopyToShared(row + 2 * packs + p, HalvesOf(a.norm_bias) + p * kPack);
  }
}

// Threads have the same packs in each pass over the row.
__device__ __forceinline__ void FormRow(const OneRowArgs& a, uint4* row) {
  const int packs = a.depth / kPack, thread = static_cast<int>(threadIdx.x);
  const uint16_t *const x = HalvesOf(a.x), *const residual = HalvesOf(a.residual);
  const bool layer = a.norm == RowNorm::kLayer;
  float sum = 0;
#pragma unroll 2
  for (int p = thread; p < packs; p += kThreads) {
    uint4 raw = *reinterpret_cast<const uint4*>(x + p * kPack);
    float s[kPack];
    ToFloats(raw, s);
    if (residual != nullptr) {
      float r[kPack];
      ToFloats(*reinterpret_cast<const uint4*>(residual + p * kPack), r);
#pragma unroll
      for (int i = 0; i < kPack; ++i) s[i] = __fadd_rn(s[i], r[i]);
      raw = OfFloats(s);
      ToFloats(raw, s);
      if (blockIdx.x == 0) reinterpret_cast<uint4*>(a.sum.data)[p] = raw;
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
    for (int p = thread; p < packs; p += kThreads) {
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
  for (int p = thread; p < packs; p += kThreads) {
    float s[kPack], weight[kPack];
    ToFloats(row[p], s);
    ToFloats(row[packs + p], weight);
#pragma unroll
    for (int i = 0; i < kPack; ++i)
      s[i] = __fmul_rn(__fmul_rn(__fsub_rn(s[i], mean), rstd), weight[i]);
    if (a.norm_bias.data != nullptr) {
      float bias[kPack];
      ToFloats(row[2 * packs + p], bias);
#pragma unroll
      for (int i = 0; i < kPack; ++i) s[i] = __fadd_rn(s[i], bias[i]);
    }
    row[p] = OfFloats(s);
  }
}

template <RowFinish kFinish>
inline constexpr int kLinesOf =
    kFinish == RowFinish::kSwiglu || kFinish == RowFinish::kRotate ? 2 : 1;

// Joins the sums of a unit's lines, and stores what they give.
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
    if (!a.out.bf16) {
      reinterpret_cast<float*>(a.out.data)[column] = out[0];
      return;
    }
  uint16_t* const to = reinterpret_cast<uint16_t*>(a.out.data) + column;
  to[0] = static_cast<uint16_t>(PairOfBF16(out[0], 0.0f));
  if constexpr (kFinish == RowFinish::kRotate)
    to[a.gap] = static_cast<uint16_t>(PairOfBF16(out[1], 0.0f));
}

// A warp forms `each` neighbouring units, one after the other. Packs of all their lines are one
// stream, kAhead of which are on their way.
template <RowFinish kFinish>
__global__ void __launch_bounds__(kThreads, kLinesOf<kFinish> == 2 ? 3 : 4)
    OneRowKernel(const OneRowArgs a, const int each) {
  constexpr int kLines = kLinesOf<kFinish>, kSteps = kAhead / kLines;
  extern __shared__ uint4 row[];
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp,
            first = warp * each, last = min(first + each, a.units),
            passes = (a.depth + kPass - 1) / kPass;
  // The first column of a unit: halves of heads lie between those of kRotate.
  const auto column_of = [&](int unit) {
    return kFinish == RowFinish::kRotate ? unit + unit / a.gap * a.gap : unit;
  };
  const auto line_of = [&](int column, int h) {
    return HalvesOf(a.weight) + (column + int64_t{h} * a.gap) * a.weight.stride;
  };
  // The pack that is read next.
  int next = first, next_pass = 0;
  const uint16_t* line = line_of(column_of(first), 0);
  const auto read = [&](uint4(&w)[kLines]) {
    const int at = next_pass * kPass + lane * kPack;
#pragma unroll
    for (int h = 0; h < kLines; ++h)
      w[h] = next < last && at < a.depth
                 ? ReadOnce(line + int64_t{h} * a.gap * a.weight.stride + at)
                 : make_uint4(0, 0, 0, 0);
    if (++next_pass == passes) next_pass = 0, line = line_of(column_of(++next), 0);
  };
  uint4 w[kSteps][kLines];
  const auto read_first = [&] {
    if (a.norm != RowNorm::kNone) FetchNorm(a, row);
#pragma unroll
    for (int n = 0; n < kSteps; ++n) read(w[n]);
  };
  if (a.constant) read_first();
  BeginKernel();
  if (!a.constant) read_first();
  float bias[kLines] = {};
  float2 turn{};
  const int64_t position = kFinish == RowFinish::kRotate ? a.at[0] : 0;
  // What the end of a unit needs.
  const auto read_end = [&](int unit) {
    if (unit >= last) return;
    if (a.bias.data != nullptr)
#pragma unroll
      for (int h = 0; h < kLines; ++h)
        bias[h] = __uint_as_float(uint32_t{HalvesOf(a.bias)[column_of(unit) + h * a.gap]} << 16);
    if constexpr (kFinish == RowFinish::kRotate)
      turn = reinterpret_cast<const float2*>(a.table)[position * a.gap + unit % a.gap];
  };
  read_end(first);
  FormRow(a, row);
  __syncthreads();
  float sum[kLines] = {};
  int unit = first, pass = 0;
  const int total = (last - first) * passes;
  for (int begin = 0; begin < total; begin += kSteps) {
#pragma unroll
    for (int n = 0; n < kSteps; ++n) {
      if (begin + n >= total) break;
      float x[kPack];
      ToFloats(row[min(pass * kWarp + lane, a.depth / kPack - 1)], x);
#pragma unroll
      for (int h = 0; h < kLines; ++h) {
        float f[kPack];
        ToFloats(w[n][h], f);
#pragma unroll
        for (int i = 0; i < kPack; ++i) sum[h] = __fmaf_rn(x[i], f[i], sum[h]);
      }
      read(w[n]);
      if (++pass < passes) continue;
#pragma unroll
      for (int h = 0; h < kLines; ++h) sum[h] = __fadd_rn(WarpSum(sum[h]), bias[h]);
      if (lane == 0) StoreUnit<kFinish>(a, unit, column_of(unit), sum, turn);
#pragma unroll
      for (int h = 0; h < kLines; ++h) sum[h] = 0;
      pass = 0;
      read_end(++unit);
    }
  }
}

template <RowFinish kFinish>
void LaunchFinish(const OneRowArgs& args, const Launch& launch) {
  // Where units are many, as many warps as three blocks to a multiprocessor have; else a unit to a
  // warp.
  const int64_t warps = int64_t{3} * kWarps * launch.sms;
  const int64_t each = args.units <= 2 * warps ? 1 : CeilDiv(args.units, warps);
  const int64_t rows = args.norm == RowNorm::kNone ? 1 : args.norm_bias.data == nullptr ? 2 : 3;
  // What it reads first needs nothing of the kernel before: it begins beside that one.
  Launch beside = launch;
  beside.one_row = true;
  if (args.constant && launch.early == EarlyLaunch::kEnd) beside.early = EarlyLaunch::kBegin;
  constexpr size_t kMostShared = 3 * kMostRowNorm * sizeof(uint16_t);
  static_assert(kMostRowDepth * sizeof(uint16_t) <= kMostShared);
  MR_CUDA(cudaFuncSetAttribute(OneRowKernel<kFinish>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kMostShared));
  LaunchKernel(beside, static_cast<unsigned>(CeilDiv(args.units, kWarps * each)), kThreads,
               static_cast<size_t>(rows * args.depth) * sizeof(uint16_t), OneRowKernel<kFinish>,
               args, static_cast<int>(each));
}

}  // namespace

void LaunchOneRow(const OneRowArgs& args, const Launch& launch) {
  switch (args.finish) {
    case RowFinish::kNone:
      return LaunchFinish<RowFinish::kNone>(args, launch);
    case RowFinish::kGelu:
      return LaunchFinish<RowFinish::kGelu>(args, launch);
    case RowFinish::kSwiglu:
      return LaunchFinish<RowFinish::kSwiglu>(args, launch);
    case RowFinish::kRotate:
      return LaunchFinish<RowFinish::kRotate>(args, launch);
  }
}

}  // namespace millrace::cuda
