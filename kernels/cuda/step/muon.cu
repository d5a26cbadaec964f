#include "kernels/cuda/flat.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/step/muon_launch.h"

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

struct Normalise {
  const MuonNormaliseArgs& a;
  float factor;

  __device__ explicit Normalise(const MuonNormaliseArgs& args) : a(args) {
    factor = Single(__ddiv_rn(1, fmax(__dsqrt_rn(*args.sum_squares), args.eps)));
  }

  template <int W>
  __device__ __forceinline__ void Run(int64_t unit) const {
    float x[W];
    LoadFloats<W>(a.x, unit, x);
#pragma unroll
    for (int i = 0; i < W; ++i) x[i] = __fmul_rn(x[i], factor);
    StoreFloats<W>(a.x, unit, x);
  }
};

struct Polynomial {
  const MuonPolynomialArgs& a;

  __device__ explicit Polynomial(const MuonPolynomialArgs& args) : a(args) {}

  template <int W>
  __device__ __forceinline__ void Run(int64_t unit) const {
    float gram[W], square[W], out[W];
    LoadFloats<W>(a.gram, unit, gram), LoadFloats<W>(a.square, unit, square);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      out[i] = __fadd_rn(__fmul_rn(a.b, gram[i]), __fmul_rn(a.c, square[i]));
      if ((unit * W + i) % (a.rows + 1) == 0) out[i] = __fadd_rn(out[i], a.a);
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
  LaunchOver<Normalise>(args, {args.x}, launch);
}
void LaunchMuonPolynomial(const MuonPolynomialArgs& args, const Launch& launch) {
  LaunchOver<Polynomial>(args, {args.gram, args.square, args.out}, launch);
}
void LaunchMuonUpdate(const MuonUpdateArgs& args, const Launch& launch) {
  LaunchOver<Weights>(args, {args.ortho, args.master, args.compute}, launch);
}

}  // namespace millrace::cuda
