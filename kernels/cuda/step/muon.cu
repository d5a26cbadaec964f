#include <algorithm>

#include "kernels/cuda/flat.cuh"
#include "kernels/cuda/step/muon_launch.h"
#include "kernels/ops/cuda_blocking.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

// A unit of a view of either dtype, as floats. All threads take one branch.
template <int W>
__device__ __forceinline__ void LoadFloats(const Rows& rows, int64_t unit, float (&v)[W]) {
  if (rows.bf16)
    Widen<Elements::kBF16, W>(LoadUnit<Elements::kBF16, W>(rows, unit), v);
  else
    Widen<Elements::kF32, W>(LoadUnit<Elements::kF32, W>(rows, unit), v);
}
template <int W>
__device__ __forceinline__ void StoreFloats(const Rows& rows, int64_t unit, const float (&v)[W]) {
  if (rows.bf16)
    StoreUnit<Elements::kBF16, W>(rows, unit, Narrow<Elements::kBF16, W>(v));
  else
    StoreUnit<Elements::kF32, W>(rows, unit, Narrow<Elements::kF32, W>(v));
}

__device__ __forceinline__ float Single(double value) { return __double2float_rn(value); }

// What each op does with a unit. Made once per thread, of what is equal for all elements.
struct Momentum {
  const MuonMomentumArgs& a;
  bool applied;
  float clip, keep, take;

  // Not as initialisers, which nvcc's host compiler reads as well, without the intrinsics.
  __device__ explicit Momentum(const MuonMomentumArgs& args) : a(args) {
    applied = args.scalars->applied != 0;
    clip = Single(args.scalars->clip_scale);
    keep = Single(args.momentum);
    take = Single(__dsub_rn(1, args.momentum));
  }

  template <int W>
  __device__ __forceinline__ void Run(int64_t unit) const {
    float out[W] = {};
    if (applied) {
      float g[W], m[W];
      LoadFloats<W>(a.grad, unit, g), LoadFloats<W>(a.m, unit, m);
#pragma unroll
      for (int i = 0; i < W; ++i) {
        const float taken = __fmul_rn(take, __fmul_rn(g[i], clip));
        m[i] = __fadd_rn(__fmul_rn(keep, m[i]), taken);
        out[i] = a.nesterov ? __fadd_rn(__fmul_rn(keep, m[i]), taken) : m[i];
      }
      StoreFloats<W>(a.m, unit, m);
    }
    StoreFloats<W>(a.out, unit, out);
  }
};

struct Weights {
  const MuonUpdateArgs& a;
  bool applied;
  float step, keep;

  __device__ explicit Weights(const MuonUpdateArgs& args)
      : a(args), applied(args.scalars->applied != 0) {
    const double rate = __dmul_rn(args.scalars->lr, args.lr_scale);
    step = Single(rate);
    keep = Single(__dsub_rn(1, __dmul_rn(rate, args.weight_decay)));
  }

  template <int W>
  __device__ __forceinline__ void Run(int64_t unit) const {
    float w[W];
    LoadFloats<W>(a.master, unit, w);
    if (applied) {
      float o[W];
      LoadFloats<W>(a.ortho, unit, o);
#pragma unroll
      for (int i = 0; i < W; ++i) w[i] = __fsub_rn(__fmul_rn(w[i], keep), __fmul_rn(step, o[i]));
      StoreFloats<W>(a.master, unit, w);
    }
    if (a.compute.data != nullptr) StoreFloats<W>(a.compute, unit, w);
  }
};

template <class Op, class Args, int W>
__global__ void __launch_bounds__(kFlatThreads) MuonKernel(const __grid_constant__ Args a) {
  BeginKernel();
  const Op op(a);
  const int64_t units = a.n / W, unit = blockIdx.x * int64_t{kFlatThreads} + threadIdx.x;
  if (unit < units) op.template Run<W>(unit);
  // What no whole unit holds.
  const int64_t last = units * W + threadIdx.x;
  if (W > 1 && blockIdx.x == 0 && last < a.n) op.template Run<1>(last);
}

// Elements of quad q of a matrix of n, the absent ones zero. A matrix's sum has one order, however
// it is read.
template <bool kWide>
__device__ __forceinline__ void LoadQuad(const Rows& matrix, int64_t q, int64_t n, float (&v)[4]) {
  if (kWide && q * 4 + 4 <= n) return LoadFloats<4>(matrix, q, v);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float one[1] = {0.0f};
    if (q * 4 + i < n) LoadFloats<1>(matrix, q * 4 + i, one);
    v[i] = one[0];
  }
}

__device__ __forceinline__ Rows From(Rows rows, int64_t element) {
  rows.data += element * (rows.bf16 ? 2 : 4);
  return rows;
}
__device__ __forceinline__ Rows MatrixOf(const MuonNormaliseArgs& a, int64_t matrix) {
  return From(a.x, matrix / a.of_group * a.group_stride + matrix % a.of_group * a.n);
}

// Block (m, b): of matrix m the quads of threads b * threads + t, then every (blocks * threads)-th.
template <bool kWide>
__global__ void __launch_bounds__(kSumSquaresThreads)
    SquaresKernel(const __grid_constant__ MuonNormaliseArgs a) {
  BeginKernel();
  __shared__ double shared[32];
  const Rows x = MatrixOf(a, blockIdx.x);
  double sum[4] = {};
  for (int64_t q = blockIdx.y * int64_t{kSumSquaresThreads} + threadIdx.x; q * 4 < a.n;
       q += int64_t{gridDim.y} * kSumSquaresThreads) {
    float v[4];
    LoadQuad<kWide>(x, q, a.n, v);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = __fma_rn(double{v[i]}, double{v[i]}, sum[i]);
  }
  const double total =
      BlockSum(__dadd_rn(__dadd_rn(sum[0], sum[1]), __dadd_rn(sum[2], sum[3])), shared);
  if (threadIdx.x == 0) a.partials[blockIdx.x * int64_t{gridDim.y} + blockIdx.y] = total;
}

// Quads that a thread of the kernel below moves, about, so that the sum ahead of them is a small
// part; and most blocks of a matrix, which are a grid's second dimension.
constexpr int64_t kQuadsOfThread = 8, kMostBlocks = 65535;

// Blocks as above. `partials`: of each matrix.
template <bool kWide>
__global__ void __launch_bounds__(kFlatThreads)
    NormaliseKernel(const __grid_constant__ MuonNormaliseArgs a, int partials) {
  BeginKernel();
  __shared__ float shared_factor;
  if (threadIdx.x == 0) {
    double squares = 0;
    for (int b = 0; b < partials; ++b)
      squares = __dadd_rn(squares, a.partials[blockIdx.x * int64_t{partials} + b]);
    shared_factor = Single(__ddiv_rn(1, fmax(__dsqrt_rn(squares), a.eps)));
  }
  __syncthreads();
  const float factor = shared_factor;
  const Rows x = MatrixOf(a, blockIdx.x), out = From(a.out, blockIdx.x * a.n);
#pragma unroll 4
  for (int64_t q = blockIdx.y * int64_t{kFlatThreads} + threadIdx.x; q * 4 < a.n;
       q += int64_t{gridDim.y} * kFlatThreads) {
    float v[4];
    LoadQuad<kWide>(x, q, a.n, v);
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = __fmul_rn(v[j], factor);
    if (kWide && q * 4 + 4 <= a.n) {
      StoreFloats<4>(out, q, v);
      continue;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (q * 4 + j < a.n) {
        const float one[1] = {v[j]};
        StoreFloats<1>(out, q * 4 + j, one);
      }
  }
}

template <bool kWide>
void LaunchNormalise(const MuonNormaliseArgs& args, const Launch& launch) {
  const auto matrices = static_cast<unsigned>(args.groups * args.of_group);
  const auto partials = static_cast<unsigned>(MatrixSquaresBlocks(args.n));
  LaunchKernel(launch, dim3(matrices, partials), kSumSquaresThreads, 0, SquaresKernel<kWide>, args);
  const int64_t blocks = CeilDiv(args.n, 4 * kFlatThreads * kQuadsOfThread);
  LaunchKernel(launch, dim3(matrices, static_cast<unsigned>(std::min(blocks, kMostBlocks))),
               kFlatThreads, 0, NormaliseKernel<kWide>, args, static_cast<int>(partials));
}

template <class Op, class Args>
void LaunchOver(const Args& args, std::initializer_list<Rows> rows, const Launch& launch) {
  if (args.n == 0) return;
  bool wide = true;
  for (const Rows& of : rows) wide &= of.wide || of.data == nullptr;
  const auto blocks = [&](int64_t w) {
    return static_cast<unsigned>(CeilDiv(args.n, kFlatThreads * w));
  };
  if (wide)
    LaunchKernel(launch, blocks(4), kFlatThreads, 0, MuonKernel<Op, Args, 4>, args);
  else
    LaunchKernel(launch, blocks(1), kFlatThreads, 0, MuonKernel<Op, Args, 1>, args);
}

}  // namespace

void LaunchMuonMomentum(const MuonMomentumArgs& args, const Launch& launch) {
  LaunchOver<Momentum>(args, {args.grad, args.m, args.out}, launch);
}
void LaunchMuonNormalise(const MuonNormaliseArgs& args, const Launch& launch) {
  if (args.n == 0 || args.groups * args.of_group == 0) return;
  // Matrices begin where SequenceOf has looked.
  if (args.x.wide && args.out.wide)
    LaunchNormalise<true>(args, launch);
  else
    LaunchNormalise<false>(args, launch);
}
void LaunchMuonUpdate(const MuonUpdateArgs& args, const Launch& launch) {
  LaunchOver<Weights>(args, {args.ortho, args.master, args.compute}, launch);
}

}  // namespace millrace::cuda
