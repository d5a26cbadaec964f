#include "kernels/cuda/magnitude.cuh"
#include "kernels/cuda/norm/norm_launch.h"
#include "kernels/cuda/norm/norm_rows.cuh"
#include "kernels/ops/cuda_blocking.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

// Rows of a group that lie in shared memory: one at work, the others on their way.
constexpr int kStages = 2;
constexpr int kStagedPacks = 3;  // more would not leave room for them

// The last rows of d_out have been written last, and may still be in the L2 cache.
constexpr bool kLastRowFirst = true;

__device__ __forceinline__ int64_t RowOfTurn(const NormGradArgs& a, int64_t row) {
  return kLastRowFirst ? a.rows - 1 - row : row;
}

// What a thread keeps over its rows: d_weight, and d_bias where the norm has one. It has few rows:
// f32 is enough. Without a mean and a bias there is less to sum.
template <int P, bool kBias>
struct ColumnSums {
  static constexpr int kCount = kBias ? 2 : 1;
  Floats v[kCount][P];
};

// Adds a pack to the sums over its row, of g * xhat and then of g, and over its columns. The
// rounding of the former would be shared by the row: they are formed in double, but from packs of
// 16 bits, whose conversion one by one would take longer than all else, from the f32 sum of each
// pack. Past the last column dy and weight are zero, and so is every term.
template <Elements E, int P, bool kBias>
__device__ __forceinline__ void AddPack(const Floats& dy, const Floats& x, const Floats& weight,
                                        float mean, float rstd, int k, double (&row)[kBias ? 2 : 1],
                                        ColumnSums<P, kBias>& columns) {
  Floats g, xhat;
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    xhat.v[i] = __fmul_rn(__fsub_rn(x.v[i], mean), rstd);
    g.v[i] = __fmul_rn(dy.v[i], weight.v[i]);
    columns.v[0][k].v[i] = __fmaf_rn(dy.v[i], xhat.v[i], columns.v[0][k].v[i]);
    if constexpr (kBias) columns.v[1][k].v[i] = __fadd_rn(columns.v[1][k].v[i], dy.v[i]);
  }
  double part_g_xhat = 0, part_g = 0;
  if constexpr (kIsShort<E>) {
    float pair[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      pair[i] = __fmaf_rn(g.v[2 * i], xhat.v[2 * i], __fmul_rn(g.v[2 * i + 1], xhat.v[2 * i + 1]));
    part_g_xhat = __fadd_rn(__fadd_rn(pair[0], pair[1]), __fadd_rn(pair[2], pair[3]));
    if constexpr (kBias) part_g = SumOfPack(g);
  } else {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      part_g_xhat = __fma_rn(g.v[i], xhat.v[i], part_g_xhat);
      if constexpr (kBias) part_g = __dadd_rn(part_g, g.v[i]);
    }
  }
  row[0] = __dadd_rn(row[0], part_g_xhat);
  if constexpr (kBias) row[1] = __dadd_rn(row[1], part_g);
}

// What d_x takes from the row's sums: rstd^2 mean(g xhat) and rstd mean(g),
// which is absent from rms.
struct RowTerms {
  float slope, offset;
};
template <bool kBias>
__device__ __forceinline__ RowTerms SlopeAndOffset(const NormGradArgs& a,
                                                   const double (&sums)[kBias ? 2 : 1],
                                                   float rstd) {
  const double of_row = __dmul_rn(a.per_column, rstd);
  RowTerms terms{__double2float_rn(__dmul_rn(__dmul_rn(sums[0], of_row), rstd)), 0.0f};
  if constexpr (kBias)
    if (a.mean != nullptr) terms.offset = __double2float_rn(__dmul_rn(sums[1], of_row));
  return terms;
}

// d_x = rstd g - (x - mean) slope - offset + bypass.
__device__ __forceinline__ Floats GradientOf(const Floats& dy, const Floats& x,
                                             const Floats& weight, const Floats& bypass, float mean,
                                             float rstd, float slope, float offset) {
  Floats dx;
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const float g = __fmul_rn(dy.v[i], weight.v[i]), centred = __fsub_rn(x.v[i], mean);
    dx.v[i] = __fadd_rn(__fmaf_rn(g, rstd, __fmaf_rn(-centred, slope, -offset)), bypass.v[i]);
  }
  return dx;
}

static_assert(NormGradGroups({2, 1}) == 4 && NormGradGroups({4, 1}) == 2);  // Group::Sync

// Leaves the block's column sums in its partials, those of d_bias if asked for: groups are added in
// order, in double. All threads of the block are done with what `shared` held before.
template <int P, bool kBias>
__device__ __forceinline__ void StorePartials(const NormGradArgs& a, const Group& group,
                                              const ColumnSums<P, kBias>& columns, float* shared) {
  constexpr int kCount = ColumnSums<P, kBias>::kCount;
  double* const out = a.partials + int64_t{blockIdx.x} * a.sums * a.columns;
  if (group.count == 1) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      if (n == a.sums) break;
#pragma unroll
      for (int k = 0; k < P; ++k)
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          const int c = group.column(k) + i;
          if (c < a.columns) out[n * a.columns + c] = columns.v[n][k].v[i];
        }
    }
    return;
  }
  const int width = (a.columns + kPack - 1) / kPack * kPack;
#pragma unroll
  for (int n = 0; n < kCount; ++n)
#pragma unroll
    for (int k = 0; k < P; ++k) {
      const int c = group.column(k);
      if (c >= a.columns) continue;  // not break: no branch, so whole warps reach the barrier
      float4* const to = reinterpret_cast<float4*>(shared + (group.index * kCount + n) * width + c);
      const Floats& f = columns.v[n][k];
      to[0] = make_float4(f.v[0], f.v[1], f.v[2], f.v[3]);
      to[1] = make_float4(f.v[4], f.v[5], f.v[6], f.v[7]);
    }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
    if (n == a.sums) break;
    for (int c = static_cast<int>(threadIdx.x); c < a.columns; c += static_cast<int>(blockDim.x)) {
      double total = shared[n * width + c];
      for (int g = 1; g < group.count; ++g)
        total = __dadd_rn(total, shared[(g * kCount + n) * width + c]);
      out[n * a.columns + c] = total;
    }
  }
}

// Groups share a block as long as a row takes at most four warps, each with four packs per thread.
constexpr size_t kMostSums = 2 * sizeof(float) * kPack * 8 * kWarp * 4;

// d_x = (g - mean(g) - xhat * mean(g * xhat)) * rstd + bypass with g = d_out * weight, xhat = (x -
// mean) * rstd; mean(g) is absent from rms. Block b leaves its sums over rows in partials[b]. Of
// any dtypes and alignment. Without kBias, which is rms without a bias, d_out itself is not summed.
template <Elements E, int P, bool kBias>
__global__ void __launch_bounds__(512) NormGradKernel(const NormGradArgs a) {
  BeginKernel();
  extern __shared__ uint4 shared[];
  const Group group(a.shape.warps);
  ColumnSums<P, kBias> columns{};
  StoredMagnitude<E> magnitude;
  int turn = 0;
  const int64_t step = int64_t{gridDim.x} * group.count;
  for (int64_t i = int64_t{blockIdx.x} * group.count + group.index; i < a.rows;
       i += step, turn ^= 1) {
    const int64_t row = RowOfTurn(a, i);
    Raw<E> d_out[P], x[P];
#pragma unroll
    for (int k = 0; k < P; ++k) {
      const int c = group.column(k);
      const bool mine = c < a.columns;
      d_out[k] = mine ? LoadRaw<E>(a.d_out, row * a.d_out.stride + c, a.columns - c) : Raw<E>{};
      x[k] = mine ? LoadRaw<E>(a.x, row * a.x.stride + c, a.columns - c) : Raw<E>{};
    }
    const float mean = kBias && a.mean != nullptr ? a.mean[row] : 0.0f;
    const float rstd = a.rstd[row];
    double sums[kBias ? 2 : 1] = {};
#pragma unroll
    for (int k = 0; k < P; ++k) {
      const int c = group.column(k);
      if (c >= a.columns) break;
      const Floats weight = Load<kMixOf<E>>(a.weight, c, a.columns - c);
      AddPack<E, P, kBias>(ToFloats<E>(a.d_out, d_out[k]), ToFloats<E>(a.x, x[k]), weight, mean,
                           rstd, k, sums, columns);
    }
    Raw<E> bypass[P];  // on its way during the sums
#pragma unroll
    for (int k = 0; k < P; ++k) {
      const int c = group.column(k);
      if (a.d_bypass.data != nullptr && c < a.columns)
        bypass[k] = LoadRaw<E>(a.d_bypass, row * a.d_bypass.stride + c, a.columns - c);
    }
    GroupSum(sums, group, turn);
    const auto [slope, offset] = SlopeAndOffset<kBias>(a, sums, rstd);
#pragma unroll
    for (int k = 0; k < P; ++k) {
      const int c = group.column(k);
      if (c >= a.columns) break;
      Forget(d_out[k]), Forget(x[k]);
      const Floats weight = Load<kMixOf<E>>(a.weight, c, a.columns - c);
      const Floats past =
          a.d_bypass.data != nullptr ? ToFloats<E>(a.d_bypass, bypass[k]) : Floats{};
      const Floats dx = GradientOf(ToFloats<E>(a.d_out, d_out[k]), ToFloats<E>(a.x, x[k]), weight,
                                   past, mean, rstd, slope, offset);
      const Raw<E> rounded = FromFloats<E>(a.d_x, dx);
      StoreRaw<E>(a.d_x, row * a.d_x.stride + c, a.columns - c, rounded);
      if (a.magnitude != nullptr) magnitude.Add(a.d_x, rounded, a.columns - c);
    }
  }
  StorePartials(a, group, columns, reinterpret_cast<float*>(shared));
  if (a.magnitude != nullptr) magnitude.Raise(a.magnitude);
}

template <int kBytes>
__device__ __forceinline__ void CopyAsync(void* shared, const void* global) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(to), "l"(global) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(to), "l"(global) : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" : : : "memory");
}
template <int kLater>  // but for the copies that the last kLater commits cover
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kLater) : "memory");
}

// Shared memory of a warp: for each stage the packs of d_out, x and d_bypass, then mean and rstd.
template <int P>
inline constexpr int kStageVectors = 3 * P* kWarp + 1;
template <int P>
inline constexpr int kWarpVectors = kStages* kStageVectors<P>;
template <int P>
inline constexpr size_t kWarpBytes = kWarpVectors<P> * sizeof(uint4);

// The same in the same order, where everything has one format of 16 bits and each pack is one
// aligned vector: a row is on its way to shared memory while the one before it is at work.
// kOneWarp: so has a row.
template <Elements E, int P, bool kBias, bool kOneWarp, bool kMagnitude>
__global__ void __launch_bounds__(512) NormGradStagedKernel(const NormGradArgs a) {
  BeginKernel();
  extern __shared__ uint4 shared[];
  const Group group(kOneWarp ? 1 : a.shape.warps);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint4* const own = shared + static_cast<int>(threadIdx.x) / kWarp * kWarpVectors<P>;
  const auto vector = [&](int stage, int operand, int k) {
    return own + stage * kStageVectors<P> + (operand * P + k) * kWarp + lane;
  };
  const auto statistics = [&](int stage) {
    return reinterpret_cast<float*>(own + (stage + 1) * kStageVectors<P> - 1);
  };
  const auto begin = [&](const Rows& rows, int64_t row) {
    return reinterpret_cast<uint16_t*>(rows.data) + row * rows.stride + group.column(0);
  };
  const auto fetch = [&](int stage, int64_t i) {
    if (i < a.rows) {
      const int64_t row = RowOfTurn(a, i);
      const uint16_t *const d_out = begin(a.d_out, row), *const x = begin(a.x, row),
                            *const bypass = begin(a.d_bypass, row);
#pragma unroll
      for (int k = 0; k < P; ++k) {
        if (group.column(k) >= a.columns) break;
        const int at = k * group.threads * kPack;
        CopyAsync<16>(vector(stage, 0, k), d_out + at);
        CopyAsync<16>(vector(stage, 1, k), x + at);
        if (a.d_bypass.data != nullptr) CopyAsync<16>(vector(stage, 2, k), bypass + at);
      }
      if (lane == 0) CopyAsync<4>(statistics(stage), a.rstd + row);
      if (lane == 1 && kBias && a.mean != nullptr)
        CopyAsync<4>(statistics(stage) + 1, a.mean + row);
    }
    CommitCopies();
  };

  Raw<E> weight[P];
#pragma unroll
  for (int k = 0; k < P; ++k) {
    const int c = group.column(k);
    weight[k] = c < a.columns ? LoadRaw<E>(a.weight, c, a.columns - c) : Raw<E>{};
  }
  const int64_t step = int64_t{gridDim.x} * group.count;
  int64_t i = int64_t{blockIdx.x} * group.count + group.index;
  ColumnSums<P, kBias> columns{};
  StoredMagnitude<E> magnitude;
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) fetch(s, i + s * step);
  int turn = 0;
  for (int stage = 0; i < a.rows; i += step, turn ^= 1) {
    WaitForCopies<kStages - 2>();
    __syncwarp();  // other lanes' copies, too; and all lanes are done with the stage before
    fetch(stage == 0 ? kStages - 1 : stage - 1, i + (kStages - 1) * step);

    const float rstd = statistics(stage)[0];
    const float mean = kBias && a.mean != nullptr ? statistics(stage)[1] : 0.0f;
    double sums[kBias ? 2 : 1] = {};
#pragma unroll
    for (int k = 0; k < P; ++k) {
      if (group.column(k) >= a.columns) break;
      Forget(weight[k]);
      AddPack<E, P, kBias>(ToFloats<E>(a.d_out, {*vector(stage, 0, k)}),
                           ToFloats<E>(a.x, {*vector(stage, 1, k)}),
                           ToFloats<E>(a.weight, weight[k]), mean, rstd, k, sums, columns);
    }
    GroupSum(sums, group, turn);
    const auto [slope, offset] = SlopeAndOffset<kBias>(a, sums, rstd);
    uint16_t* const d_x = begin(a.d_x, RowOfTurn(a, i));
#pragma unroll
    for (int k = 0; k < P; ++k) {
      if (group.column(k) >= a.columns) break;
      Forget(weight[k]);
      Raw<E> d_out{*vector(stage, 0, k)}, x{*vector(stage, 1, k)};
      Forget(d_out), Forget(x);  // their conversions
      Floats past{};
      if (a.d_bypass.data != nullptr) past = ToFloats<E>(a.d_bypass, {*vector(stage, 2, k)});
      const Floats dx =
          GradientOf(ToFloats<E>(a.d_out, d_out), ToFloats<E>(a.x, x),
                     ToFloats<E>(a.weight, weight[k]), past, mean, rstd, slope, offset);
      const Raw<E> rounded = FromFloats<E>(a.d_x, dx);
      *reinterpret_cast<uint4*>(d_x + k * group.threads * kPack) = rounded.low;
      if constexpr (kMagnitude) magnitude.Add(a.d_x, rounded, kPack);
    }
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  __syncthreads();  // rows of other warps are where the partials go
  StorePartials(a, group, columns, reinterpret_cast<float*>(shared));
  if constexpr (kMagnitude) magnitude.Raise(a.magnitude);
}

// sum[c] (=|+=) sum over blocks b, in an order that depends on their number alone:
// thread (x, y) adds up partials y, y + 32, ... of column x of the block's 32, then warp
// y the 32 sums of column y.
constexpr int kSlices = kWarp;
constexpr int kSlicePartials = static_cast<int>(CeilDiv(kNormGradBlocks, kSlices));

template <Elements Mix>
__global__ void __launch_bounds__(kWarp* kSlices, 1) NormSumsKernel(const NormSumsArgs a) {
  BeginKernel();
  __shared__ double of_column[kWarp][kSlices + 1];
  const bool bias = blockIdx.y == 1;
  const Rows out = bias ? a.d_bias : a.d_weight;
  const int first = static_cast<int>(blockIdx.x) * kWarp, slice = static_cast<int>(threadIdx.y);
  const int column = first + static_cast<int>(threadIdx.x), step = a.sums * a.columns;
  const double* const of_blocks = a.partials + static_cast<int>(blockIdx.y) * a.columns + column;
  double part[kSlicePartials];
#pragma unroll
  for (int j = 0; j < kSlicePartials; ++j) {
    const int b = slice + j * kSlices;
    part[j] = b < a.blocks && column < a.columns ? of_blocks[int64_t{b} * step] : 0.0;
  }
  double total = part[0];
#pragma unroll
  for (int j = 1; j < kSlicePartials; ++j) total = __dadd_rn(total, part[j]);
  of_column[threadIdx.x][slice] = total;
  __syncthreads();
  total = WarpSum(of_column[slice][threadIdx.x]);
  const int c = first + slice;
  if (threadIdx.x > 0 || c >= a.columns) return;
  float sum = __double2float_rn(total);
  const bool add = bias ? a.add_bias : a.add_weight;
  if (AreShort<Mix>(out)) {
    uint16_t* to = reinterpret_cast<uint16_t*>(out.data) + c;
    if (add) sum = __fadd_rn(LowOf<Mix>(*to), sum);
    *to = static_cast<uint16_t>(PairOf<Mix>(sum, 0.0f));
  } else {
    float* to = reinterpret_cast<float*>(out.data) + c;
    *to = add ? __fadd_rn(*to, sum) : sum;
  }
}

bool Staged(const NormGradArgs& a, Elements elements) {
  const auto vectors = [&](const Rows& rows) { return rows.data == nullptr || rows.wide; };
  return IsShort(elements) && a.columns % kPack == 0 && a.shape.packs <= kStagedPacks &&
         vectors(a.d_out) && vectors(a.x) && vectors(a.d_bypass) && vectors(a.d_x) &&
         a.weight.wide && (a.weight.bf16 || a.weight.f16);
}

// `most`: dynamic shared memory that the kernel may have, the same in all its launches.
template <class Kernel>
void LaunchRows(Kernel kernel, const NormGradArgs& a, size_t shared, size_t most,
                const Launch& launch) {
  const int threads = NormGradGroups(a.shape) * a.shape.warps * kWarp;
  MR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(most)));
  LaunchKernel(launch, a.blocks, threads, shared, kernel, a);
}

}  // namespace

void LaunchNormGrad(const NormGradArgs& args, Elements elements, const Launch& launch) {
  if (args.columns == 0 || args.blocks == 0) return;
  const bool bias = args.mean != nullptr || args.sums == 2;
  const int groups = NormGradGroups(args.shape);
  const size_t sums = groups > 1 ? 2 * sizeof(float) * kPack * groups * Packs(args.columns) : 0;
  if (!Staged(args, elements)) {
    DispatchRows(elements, args.shape.packs, [&]<Elements E, int P>() {
      LaunchRows(bias ? NormGradKernel<E, P, true> : NormGradKernel<E, P, false>, args, sums,
                 kMostSums, launch);
    });
    return;
  }
  const auto run = [&]<Elements E, int P>() {
    const size_t rows = groups * args.shape.warps * kWarpBytes<P>;
    const auto with = [&]<bool kMagnitude>() {
      const auto kernel = args.shape.warps > 1
                              ? (bias ? NormGradStagedKernel<E, P, true, false, kMagnitude>
                                      : NormGradStagedKernel<E, P, false, false, kMagnitude>)
                              : (bias ? NormGradStagedKernel<E, P, true, true, kMagnitude>
                                      : NormGradStagedKernel<E, P, false, true, kMagnitude>);
      LaunchRows(kernel, args, rows > sums ? rows : sums, kMaxRowWarps * kWarpBytes<P>, launch);
    };
    args.magnitude != nullptr ? with.template operator()<kMayHaveMagnitude<E>>()
                              : with.template operator()<false>();
  };
  WithMixOf(elements, [&]<Elements Mix>() {
    constexpr Elements E = kShortOf<Mix>;
    args.shape.packs == 1   ? run.template operator()<E, 1>()
    : args.shape.packs == 2 ? run.template operator()<E, 2>()
                            : run.template operator()<E, 3>();
  });
}

void LaunchNormSums(const NormSumsArgs& args, Elements elements, const Launch& launch) {
  if (args.columns == 0) return;
  const dim3 grid(static_cast<unsigned>(CeilDiv(args.columns, kWarp)),
                  static_cast<unsigned>(args.sums));
  WithMixOf(elements, [&]<Elements Mix>() {
    LaunchKernel(launch, grid, dim3(kWarp, kSlices), 0, NormSumsKernel<Mix>, args);
  });
}

}  // namespace millrace::cuda
