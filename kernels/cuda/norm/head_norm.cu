#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/norm/head_norm_launch.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/ops/cuda_blocking.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

// A warp has a head: lane l its elements l, l + 32, ...
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kEach = static_cast<int>(kMaxHeadNormDepth) / kWarp;

// One dtype: bit for bit, NaN included.
template <Elements Mix>
__device__ __forceinline__ void CopyAt(const Rows& from, int64_t i, const Rows& to, int64_t j) {
  if (AreShort<Mix>(to))
    reinterpret_cast<uint16_t*>(to.data)[j] = reinterpret_cast<const uint16_t*>(from.data)[i];
  else
    reinterpret_cast<uint32_t*>(to.data)[j] = reinterpret_cast<const uint32_t*>(from.data)[i];
}

// Where the head of a turn lies.
struct Place {
  int64_t row;
  int head;

  __device__ Place(const HeadNormArgs& a, uint32_t turn) {
    const uint32_t r = a.row_heads.Quotient(turn);
    row = r;
    head = static_cast<int>(turn - r * a.row_heads.divisor);
  }
  __device__ int64_t In(const Rows& rows, int depth) const {
    return row * rows.stride + int64_t{head} * depth;
  }
  __device__ bool Normed(const HeadNormArgs& a) const { return head < a.heads + a.kv_heads; }
  __device__ int64_t Statistic(const HeadNormArgs& a) const {
    return row * (a.heads + a.kv_heads) + head;
  }
};

template <Elements Mix>
__global__ void __launch_bounds__(kThreads) HeadNormKernel(const HeadNormArgs a) {
  BeginKernel();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint32_t turn = blockIdx.x * kWarps + threadIdx.x / kWarp;
  if (turn >= a.turns) return;
  const Place p(a, turn);
  const int64_t from = p.In(a.x, a.depth), to = p.In(a.out, a.depth);
  if (!p.Normed(a)) {
    for (int i = lane; i < a.depth; i += kWarp) CopyAt<Mix>(a.x, from + i, a.out, to + i);
    return;
  }
  float x[kEach];
  double squares = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = lane + j * kWarp;
    x[j] = i < a.depth ? LoadOne<Mix>(a.x, from + i) : 0.0f;
    squares = __dadd_rn(squares, double{x[j]} * double{x[j]});
  }
  const auto rstd =
      static_cast<float>(1.0 / sqrt(WarpSum(squares) / static_cast<double>(a.depth) + a.eps));
  if (lane == 0) a.rstd[p.Statistic(a)] = rstd;
  const Rows& weight = p.head < a.heads ? a.q_weight : a.k_weight;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = lane + j * kWarp;
    if (i < a.depth)
      StoreOne<Mix>(a.out, to + i, __fmul_rn(__fmul_rn(x[j], rstd), LoadOne<Mix>(weight, i)));
  }
}

// d_x of a head; adds its terms of the weight's gradient to `sums`.
template <Elements Mix>
__device__ __forceinline__ void GradientOfHead(const HeadNormArgs& a, const Place& p, int lane,
                                               const Rows& weight, double (&sums)[kEach]) {
  const int64_t x_at = p.In(a.x, a.depth), dy_at = p.In(a.d_out, a.depth),
                dx_at = p.In(a.d_x, a.depth);
  const float rstd = a.rstd[p.Statistic(a)];
  float g[kEach], xhat[kEach];
  double dot = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = lane + j * kWarp;
    const bool inside = i < a.depth;
    const float dy = inside ? LoadOne<Mix>(a.d_out, dy_at + i) : 0.0f;
    xhat[j] = inside ? __fmul_rn(LoadOne<Mix>(a.x, x_at + i), rstd) : 0.0f;
    g[j] = inside ? __fmul_rn(dy, LoadOne<Mix>(weight, i)) : 0.0f;
    sums[j] = __dadd_rn(sums[j], double{dy} * double{xhat[j]});
    dot = __dadd_rn(dot, double{g[j]} * double{xhat[j]});
  }
  const auto mean = static_cast<float>(WarpSum(dot) / static_cast<double>(a.depth));
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = lane + j * kWarp;
    if (i < a.depth)
      StoreOne<Mix>(a.d_x, dx_at + i, __fmul_rn(__fsub_rn(g[j], __fmul_rn(xhat[j], mean)), rstd));
  }
}

// Each warp has turns of its own, in order; the warps' sums are added in order.
template <Elements Mix>
__global__ void __launch_bounds__(kThreads) HeadNormGradKernel(const HeadNormArgs a) {
  BeginKernel();
  __shared__ double of_warp[kWarps][kMaxHeadNormDepth];
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  double sums[2][kEach] = {};
  for (uint32_t turn = blockIdx.x * kWarps + warp; turn < a.turns; turn += gridDim.x * kWarps) {
    const Place p(a, turn);
    if (p.head < a.heads) {
      GradientOfHead<Mix>(a, p, lane, a.q_weight, sums[0]);
    } else if (p.Normed(a)) {
      GradientOfHead<Mix>(a, p, lane, a.k_weight, sums[1]);
    } else if (a.d_x.data != a.d_out.data) {
      const int64_t from = p.In(a.d_out, a.depth), to = p.In(a.d_x, a.depth);
      for (int i = lane; i < a.depth; i += kWarp) CopyAt<Mix>(a.d_out, from + i, a.d_x, to + i);
    }
  }
#pragma unroll
  for (int which = 0; which < 2; ++which) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) of_warp[warp][lane + j * kWarp] = sums[which][j];
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < a.depth; i += kThreads) {
      double sum = of_warp[0][i];
      for (int w = 1; w < kWarps; ++w) sum = __dadd_rn(sum, of_warp[w][i]);
      a.partials[(int64_t{blockIdx.x} * 2 + which) * a.depth + i] = sum;
    }
    __syncthreads();
  }
}

// sum[i] (=|+=) the partials of all blocks, in order: a block of the grid for each weight.
template <Elements Mix>
__global__ void __launch_bounds__(kMaxHeadNormDepth) HeadNormSumsKernel(const HeadNormArgs a) {
  BeginKernel();
  const int which = static_cast<int>(blockIdx.x), i = static_cast<int>(threadIdx.x);
  const Rows& out = which == 0 ? a.d_q_weight : a.d_k_weight;
  if (out.data == nullptr || i >= a.depth) return;
  double total = 0;
  for (int b = 0; b < a.blocks; ++b)
    total = __dadd_rn(total, a.partials[(int64_t{b} * 2 + which) * a.depth + i]);
  const float sum = __double2float_rn(total);
  const bool add = which == 0 ? a.add_q : a.add_k;
  StoreOne<Mix>(out, i, add ? __fadd_rn(LoadOne<Mix>(out, i), sum) : sum);
}

}  // namespace

void LaunchHeadNorm(const HeadNormArgs& args, const Launch& launch) {
  if (args.turns == 0) return;
  WithMixOf(ElementsOf({args.x, args.out}, {args.q_weight, args.k_weight}), [&]<Elements Mix>() {
    LaunchKernel(launch, static_cast<unsigned>(CeilDiv(args.turns, kWarps)), kThreads, 0,
                 HeadNormKernel<Mix>, args);
  });
}

void LaunchHeadNormGrad(const HeadNormArgs& args, const Launch& launch) {
  if (args.depth == 0) return;
  HeadNormArgs a = args;
  a.blocks = static_cast<int>(std::min<int64_t>(kHeadNormGradBlocks, CeilDiv(a.turns, kWarps)));
  const Elements elements =
      ElementsOf({a.d_out, a.x, a.d_x}, {a.q_weight, a.k_weight, a.d_q_weight, a.d_k_weight});
  WithMixOf(elements, [&]<Elements Mix>() {
    if (a.blocks > 0)
      LaunchKernel(launch, static_cast<unsigned>(a.blocks), kThreads, 0, HeadNormGradKernel<Mix>,
                   a);
    LaunchKernel(launch, 2, kMaxHeadNormDepth, 0, HeadNormSumsKernel<Mix>, a);
  });
}

}  // namespace millrace::cuda
