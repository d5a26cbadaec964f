#include "kernels/cuda/norm_launch.h"
#include "kernels/cuda/pack.cuh"
#include "runtime/base/cuda/cuda_check.h"

namespace millrace::cuda {
namespace {

constexpr int kForwardThreads = 128;  // or a row's warps, if those are more

// Several groups share a block as long as a row takes at most four warps.
constexpr int kMaxGradShared = 2 * (4 * kWarp * kNormGradPacks * kPack) * sizeof(double);

// A group is the `warps` warps that share a row.
struct Group {
  int index;   // of the block's groups
  int count;   // groups per block
  int thread;  // in the group
  int threads;

  __device__ explicit Group(int warps)
      : index(static_cast<int>(threadIdx.x) / (warps * kWarp)),
        count(static_cast<int>(blockDim.x) / (warps * kWarp)),
        thread(static_cast<int>(threadIdx.x) % (warps * kWarp)),
        threads(warps * kWarp) {}
  // First column of this thread's k-th pack.
  __device__ int column(int k) const { return (thread + k * threads) * kPack; }
};

// v[n] = its sum over each group, the same bits in all its threads: lanes as WarpSum, then warps in order.
// Every thread of the block calls it.
template <int N>
__device__ __forceinline__ void GroupSum(double (&v)[N], int warps) {
#pragma unroll
  for (int n = 0; n < N; ++n) v[n] = WarpSum(v[n]);
  if (warps == 1) return;
  __shared__ double of_warp[N][32];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  __syncthreads();  // the values of an earlier call have been read
  if (threadIdx.x % kWarp == 0) {
#pragma unroll
    for (int n = 0; n < N; ++n) of_warp[n][warp] = v[n];
  }
  __syncthreads();
  const int first = warp / warps * warps;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    v[n] = of_warp[n][first];
    for (int w = 1; w < warps; ++w) v[n] = __dadd_rn(v[n], of_warp[n][first + w]);
  }
}

// out = (s - mean) * rstd * weight + bias, one row per group.
template <Elements E, int P>
__global__ void __launch_bounds__(512) NormKernel(const NormArgs a) {
  const Group group(a.shape.warps);
  const int64_t row = int64_t{blockIdx.x} * group.count + group.index;
  const bool active = row < a.rows;

  Raw<E> x[P], residual[P];
#pragma unroll
  for (int k = 0; k < P; ++k) {
    const int c = group.column(k);
    const bool mine = active && c < a.columns;
    x[k] = mine ? LoadRaw<E>(a.x, row * a.x.stride + c, a.columns - c) : Raw<E>{};
    if (a.residual.data != nullptr)
      residual[k] = mine ? LoadRaw<E>(a.residual, row * a.residual.stride + c, a.columns - c) : Raw<E>{};
  }
  Floats s[P];
#pragma unroll
  for (int k = 0; k < P; ++k) {
    s[k] = ToFloats<E>(a.x, x[k]);
    if (a.residual.data == nullptr) continue;
    const int c = group.column(k);
    const Floats r = ToFloats<E>(a.residual, residual[k]);
#pragma unroll
    for (int i = 0; i < kPack; ++i) s[k].v[i] = __fadd_rn(s[k].v[i], r.v[i]);
    const Raw<E> rounded = FromFloats<E>(a.sum, s[k]);
    s[k] = ToFloats<E>(a.sum, rounded);
    if (active && c < a.columns) StoreRaw<E>(a.sum, row * a.sum.stride + c, a.columns - c, rounded);
  }

  // Statistics in double, rounded once: every use of a row shares the error of its two statistics.
  const double columns = a.columns;
  double exact_mean = 0;
  if (a.layer) {
    double sum[1] = {};
#pragma unroll
    for (int k = 0; k < P; ++k) {
      double part = 0;
#pragma unroll
      for (int i = 0; i < kPack; ++i) part = __dadd_rn(part, s[k].v[i]);
      sum[0] = __dadd_rn(sum[0], part);
    }
    GroupSum(sum, a.shape.warps);
    exact_mean = __ddiv_rn(sum[0], columns);
  }
  double squares[1] = {};
#pragma unroll
  for (int k = 0; k < P; ++k) {
    const int c = group.column(k);
    Forget(s[k]);  // its conversions to double
    double part = 0;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const double deviation = c + i < a.columns ? __dsub_rn(s[k].v[i], exact_mean) : 0.0;
      part = __fma_rn(deviation, deviation, part);
    }
    squares[0] = __dadd_rn(squares[0], part);
  }
  GroupSum(squares, a.shape.warps);
  const double variance = __ddiv_rn(squares[0], columns);
  const float mean = __double2float_rn(exact_mean);
  const float rstd = __double2float_rn(__ddiv_rn(1.0, __dsqrt_rn(__dadd_rn(variance, a.eps))));
  if (!active) return;
  if (group.thread == 0) {
    if (a.mean != nullptr) a.mean[row] = mean;
    if (a.rstd != nullptr) a.rstd[row] = rstd;
  }
#pragma unroll
  for (int k = 0; k < P; ++k) {
    const int c = group.column(k);
    if (c >= a.columns) break;
    const Floats weight = Load<Elements::kAny>(a.weight, c, a.columns - c);
    Floats y;
#pragma unroll
    for (int i = 0; i < kPack; ++i)
      y.v[i] = __fmul_rn(__fmul_rn(__fsub_rn(s[k].v[i], mean), rstd), weight.v[i]);
    if (a.bias.data != nullptr) {
      const Floats bias = Load<Elements::kAny>(a.bias, c, a.columns - c);
#pragma unroll
      for (int i = 0; i < kPack; ++i) y.v[i] = __fadd_rn(y.v[i], bias.v[i]);
    }
    Store<E>(a.out, row * a.out.stride + c, a.columns - c, y);
  }
}

// d_x = (g - mean(g) - xhat * mean(g * xhat)) * rstd + bypass with g = d_out * weight, xhat = (x - mean) *
// rstd; mean(g) is absent from rms, and so are the sums of d_bias. Block b leaves its sums over rows in
// partials[b].
template <Elements E, int P, bool kBias>
__global__ void __launch_bounds__(512) NormGradKernel(const NormGradArgs a) {
  const Group group(a.shape.warps);
  const double per_column = __ddiv_rn(1.0, a.columns);
  Floats d_weight[P] = {}, d_bias[kBias ? P : 1] = {};
  for (int64_t base = int64_t{blockIdx.x} * group.count; base < a.rows;
       base += int64_t{gridDim.x} * group.count) {
    const int64_t row = base + group.index;
    const bool active = row < a.rows;
    Raw<E> d_out[P], x[P];
#pragma unroll
    for (int k = 0; k < P; ++k) {
      const int c = group.column(k);
      const bool mine = active && c < a.columns;
      d_out[k] = mine ? LoadRaw<E>(a.d_out, row * a.d_out.stride + c, a.columns - c) : Raw<E>{};
      x[k] = mine ? LoadRaw<E>(a.x, row * a.x.stride + c, a.columns - c) : Raw<E>{};
    }
    const float mean = kBias && active && a.mean != nullptr ? a.mean[row] : 0.0f;
    const float rstd = active ? a.rstd[row] : 0.0f;
    // Of g and of g * xhat; their rounding would be shared by the row, as that of its statistics.
    double sums[2] = {};
#pragma unroll
    for (int k = 0; k < P; ++k) {
      const int c = group.column(k);
      if (c >= a.columns) break;
      const Floats weight = Load<Elements::kAny>(a.weight, c, a.columns - c);
      const Floats dy = ToFloats<E>(a.d_out, d_out[k]), in = ToFloats<E>(a.x, x[k]);
      double part_g = 0, part_g_xhat = 0;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        // Past the last column d_out and weight are zero, and so is every term.
        const float xhat = __fmul_rn(__fsub_rn(in.v[i], mean), rstd), g = __fmul_rn(dy.v[i], weight.v[i]);
        if constexpr (kBias) part_g = __dadd_rn(part_g, g);
        part_g_xhat = __fma_rn(g, xhat, part_g_xhat);
        d_weight[k].v[i] = __fmaf_rn(dy.v[i], xhat, d_weight[k].v[i]);
        if constexpr (kBias) d_bias[k].v[i] = __fadd_rn(d_bias[k].v[i], dy.v[i]);
      }
      sums[0] = __dadd_rn(sums[0], part_g);
      sums[1] = __dadd_rn(sums[1], part_g_xhat);
    }
    Raw<E> bypass[P];  // on its way during the sums
#pragma unroll
    for (int k = 0; k < P; ++k) {
      const int c = group.column(k);
      if (a.d_bypass.data != nullptr && active && c < a.columns)
        bypass[k] = LoadRaw<E>(a.d_bypass, row * a.d_bypass.stride + c, a.columns - c);
    }
    GroupSum(sums, a.shape.warps);
    const float mean_g = a.mean != nullptr ? __double2float_rn(__dmul_rn(sums[0], per_column)) : 0.0f;
    const float mean_g_xhat = __double2float_rn(__dmul_rn(sums[1], per_column));
    if (!active) continue;
#pragma unroll
    for (int k = 0; k < P; ++k) {
      const int c = group.column(k);
      if (c >= a.columns) break;
      Forget(d_out[k]), Forget(x[k]);
      const Floats weight = Load<Elements::kAny>(a.weight, c, a.columns - c);
      const Floats dy = ToFloats<E>(a.d_out, d_out[k]), in = ToFloats<E>(a.x, x[k]);
      Floats dx;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float xhat = __fmul_rn(__fsub_rn(in.v[i], mean), rstd);
        const float centred = __fsub_rn(__fmul_rn(dy.v[i], weight.v[i]), mean_g);
        dx.v[i] = __fmul_rn(__fsub_rn(centred, __fmul_rn(xhat, mean_g_xhat)), rstd);
      }
      if (a.d_bypass.data != nullptr) {
        const Floats past = ToFloats<E>(a.d_bypass, bypass[k]);
#pragma unroll
        for (int i = 0; i < kPack; ++i) dx.v[i] = __fadd_rn(dx.v[i], past.v[i]);
      }
      Store<E>(a.d_x, row * a.d_x.stride + c, a.columns - c, dx);
    }
  }

  // A thread has few rows, whose sums it keeps in f32. From here on in double; groups in order.
  double* const out = a.partials + int64_t{blockIdx.x} * 2 * a.columns;
  extern __shared__ double total[];
  for (int g = 0; g < group.count; ++g) {
    if (group.index == g) {
      const bool last = g + 1 == group.count;
#pragma unroll
      for (int k = 0; k < P; ++k) {
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          const int c = group.column(k) + i;
          if (c >= a.columns) break;
          double dw = d_weight[k].v[i];
          if (g > 0) dw = __dadd_rn(total[c], dw);
          (last ? out : total)[c] = dw;
          if constexpr (kBias) {
            double db = d_bias[k].v[i];
            if (g > 0) db = __dadd_rn(total[a.columns + c], db);
            (last ? out : total)[a.columns + c] = db;
          }
        }
      }
    }
    __syncthreads();
  }
}

// sum[c] (=|+=) sum over blocks b, in an order that depends on their number alone. Thread (x, y): column x of
// the block's 32, partials y, y + 8, ...
constexpr int kSlices = 8;

__global__ void __launch_bounds__(kWarp* kSlices) NormSumsKernel(const NormGradArgs a) {
  __shared__ double part[kSlices][kWarp];
  const bool bias = blockIdx.y == 1;
  const Rows out = bias ? a.d_bias : a.d_weight;
  if (out.data == nullptr) return;
  const int c = static_cast<int>(blockIdx.x * kWarp + threadIdx.x);
  const int slice = static_cast<int>(threadIdx.y);
  double total = 0;
  if (c < a.columns) {
    const double* in = a.partials + (bias ? a.columns : 0) + c;
#pragma unroll 4
    for (int b = slice; b < a.blocks; b += kSlices) total = __dadd_rn(total, in[int64_t{b} * 2 * a.columns]);
  }
  part[slice][threadIdx.x] = total;
  __syncthreads();
  if (slice > 0 || c >= a.columns) return;
  for (int s = 1; s < kSlices; ++s) total = __dadd_rn(total, part[s][threadIdx.x]);
  float sum = __double2float_rn(total);
  const bool add = bias ? a.add_bias : a.add_weight;
  if (out.bf16) {
    uint16_t* to = reinterpret_cast<uint16_t*>(out.data) + c;
    if (add) sum = __fadd_rn(__uint_as_float(static_cast<uint32_t>(*to) << 16), sum);
    *to = static_cast<uint16_t>(PairOfBF16(sum, 0.0f));
  } else {
    float* to = reinterpret_cast<float*>(out.data) + c;
    *to = add ? __fadd_rn(*to, sum) : sum;
  }
}

// f.operator()<E, P>() for the elements and packs of a row.
template <class F>
void Dispatch(Elements elements, int packs, F&& f) {
  const auto with_packs = [&]<Elements E>() {
    switch (packs) {
      case 1:
        return f.template operator()<E, 1>();
      case 2:
        return f.template operator()<E, 2>();
      case 3:
        return f.template operator()<E, 3>();
      default:
        return f.template operator()<E, 4>();
    }
  };
  switch (elements) {
    case Elements::kF32:
      return with_packs.template operator()<Elements::kF32>();
    case Elements::kBF16:
      return with_packs.template operator()<Elements::kBF16>();
    case Elements::kAny:
      return with_packs.template operator()<Elements::kAny>();
  }
}

}  // namespace

void LaunchNorm(const NormArgs& args, Elements elements, const Launch& launch) {
  if (args.rows == 0 || args.columns == 0) return;
  const int threads = max(kForwardThreads, args.shape.warps * kWarp);
  const int64_t blocks = CeilDiv(args.rows, threads / (args.shape.warps * kWarp));
  Dispatch(elements, args.shape.packs, [&]<Elements E, int P>() {
    NormKernel<E, P><<<static_cast<unsigned>(blocks), threads, 0, launch.stream>>>(args);
  });
  MR_CUDA_LAUNCHED();
}

void LaunchNormGrad(const NormGradArgs& args, Elements elements, const Launch& launch) {
  if (args.columns == 0) return;
  if (args.blocks > 0) {
    const int groups = NormGradGroups(args.shape);
    const int threads = groups * args.shape.warps * kWarp;
    const size_t shared = groups > 1 ? 2 * static_cast<size_t>(args.columns) * sizeof(double) : 0;
    Dispatch(elements, args.shape.packs, [&]<Elements E, int P>() {
      // Without a mean and a bias there is less to sum.
      const auto kernel = args.mean != nullptr || args.d_bias.data != nullptr ? NormGradKernel<E, P, true>
                                                                              : NormGradKernel<E, P, false>;
      MR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxGradShared));
      kernel<<<args.blocks, threads, shared, launch.stream>>>(args);
    });
    MR_CUDA_LAUNCHED();
  }
  const dim3 grid(static_cast<unsigned>(CeilDiv(args.columns, kWarp)), 2);
  NormSumsKernel<<<grid, dim3(kWarp, kSlices), 0, launch.stream>>>(args);
  MR_CUDA_LAUNCHED();
}

}  // namespace millrace::cuda
