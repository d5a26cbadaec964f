#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/elementwise/activation_launch.h"
#include "kernels/cuda/flat.cuh"
#include "kernels/cuda/magnitude.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

// Packs per thread.
constexpr int kUnroll = 2;

// Where a thread's u-th pack lies.
struct Place {
  bool inside;
  int64_t row;
  int column, left;

  __device__ Place(const ActivationArgs& a, int u) {
    const uint32_t pack = (blockIdx.x * kUnroll + u) * kFlatThreads + threadIdx.x;
    inside = pack < a.packs;
    const uint32_t r = a.row_packs.Quotient(pack);
    row = r;
    column = static_cast<int>(pack - r * a.row_packs.divisor) * kPack;
    left = a.columns - column;
  }
};

// Stores a pack of a result, and looks at its magnitude where that is wanted.
template <Elements E, bool kMagnitude>
__device__ __forceinline__ void StoreResult(const Rows& rows, int64_t at, int left,
                                            const Floats& values, StoredMagnitude<E>& magnitude) {
  const Raw<E> rounded = FromFloats<E>(rows, values);
  StoreRaw<E>(rows, at, left, rounded);
  if constexpr (kMagnitude) magnitude.Add(rows, rounded, left);
}

template <Elements E, ActivationKind kKind, bool kMagnitude>
__global__ void __launch_bounds__(kFlatThreads) ActivationKernel(const ActivationArgs a) {
  BeginKernel();
  if (a.packs == a.row_packs.divisor) LetNextBegin();  // of one row
  Raw<E> gate[kUnroll], up[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const Place p(a, u);
    if (!p.inside) continue;
    gate[u] = LoadRaw<E>(a.x, p.row * a.x.stride + p.column, p.left);
    if constexpr (kGated<kKind>)
      up[u] = LoadRaw<E>(a.x, p.row * a.x.stride + a.columns + p.column, p.left);
  }
  StoredMagnitude<E> magnitude;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const Place p(a, u);
    if (!p.inside) continue;
    const Floats g = ToFloats<E>(a.x, gate[u]);
    Floats other{}, y;
    if constexpr (kGated<kKind>) other = ToFloats<E>(a.x, up[u]);
#pragma unroll
    for (int i = 0; i < kPack; ++i) y.v[i] = Activate<kKind>(g.v[i], other.v[i]);
    StoreResult<E, kMagnitude>(a.out, p.row * a.out.stride + p.column, p.left, y, magnitude);
  }
  if constexpr (kMagnitude) magnitude.Raise(a.magnitude);
}

template <Elements E, ActivationKind kKind, bool kMagnitude>
__global__ void __launch_bounds__(kFlatThreads) ActivationGradKernel(const ActivationArgs a) {
  BeginKernel();
  Raw<E> gate[kUnroll], up[kUnroll], d_out[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const Place p(a, u);
    if (!p.inside) continue;
    gate[u] = LoadRaw<E>(a.x, p.row * a.x.stride + p.column, p.left);
    if constexpr (kGated<kKind>)
      up[u] = LoadRaw<E>(a.x, p.row * a.x.stride + a.columns + p.column, p.left);
    d_out[u] = LoadRaw<E>(a.d_out, p.row * a.d_out.stride + p.column, p.left);
  }
  StoredMagnitude<E> magnitude;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const Place p(a, u);
    if (!p.inside) continue;
    const Floats g = ToFloats<E>(a.x, gate[u]), dy = ToFloats<E>(a.d_out, d_out[u]);
    const int64_t at = p.row * a.d_x.stride + p.column;
    Floats d_gate;
    if constexpr (kGated<kKind>) {
      const Floats other = ToFloats<E>(a.x, up[u]);
      Floats d_up;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float s = Sigmoid(g.v[i]), silu = __fmul_rn(g.v[i], s);
        const float slope = __fadd_rn(s, __fmul_rn(silu, __fsub_rn(1.0f, s)));
        d_gate.v[i] = __fmul_rn(__fmul_rn(dy.v[i], other.v[i]), slope);
        d_up.v[i] = __fmul_rn(dy.v[i], silu);
      }
      StoreResult<E, kMagnitude>(a.d_x, at + a.columns, p.left, d_up, magnitude);
    } else {
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        d_gate.v[i] =
            __fmul_rn(dy.v[i], kKind == ActivationKind::kRelu2 ? __fmul_rn(2.0f, Relu(g.v[i]))
                                                               : GeluDerivative(g.v[i]));
    }
    StoreResult<E, kMagnitude>(a.d_x, at, p.left, d_gate, magnitude);
  }
  if constexpr (kMagnitude) magnitude.Raise(a.magnitude);
}

// The second half of a swiglu row starts F elements into it.
bool HalvesAligned(const Rows& rows, int columns) {
  return rows.wide && columns % (rows.bf16 || rows.f16 ? 8 : 4) == 0;
}

// f.operator()<E, kKind>().
template <class F>
void Dispatch(Elements elements, ActivationKind kind, F&& f) {
  const auto with_kind = [&]<Elements E>() {
    switch (kind) {
      case ActivationKind::kGelu:
        return f.template operator()<E, ActivationKind::kGelu>();
      case ActivationKind::kSwiglu:
        return f.template operator()<E, ActivationKind::kSwiglu>();
      case ActivationKind::kRelu2:
        return f.template operator()<E, ActivationKind::kRelu2>();
    }
  };
  WithElements(elements, with_kind);
}

unsigned Blocks(const ActivationArgs& args) {
  return static_cast<unsigned>(CeilDiv(args.packs, kFlatThreads * kUnroll));
}

}  // namespace

void LaunchActivation(const ActivationArgs& args, Elements elements, const Launch& launch) {
  if (args.packs == 0) return;
  ActivationArgs a = args;
  if (IsGated(a.kind)) a.x.wide = HalvesAligned(a.x, a.columns);
  Dispatch(elements, a.kind, [&]<Elements E, ActivationKind kKind>() {
    LaunchKernel(launch, Blocks(a), kFlatThreads, 0,
                 a.magnitude != nullptr ? ActivationKernel<E, kKind, kMayHaveMagnitude<E>>
                                        : ActivationKernel<E, kKind, false>,
                 a);
  });
}

void LaunchActivationGrad(const ActivationArgs& args, Elements elements, const Launch& launch) {
  if (args.packs == 0) return;
  ActivationArgs a = args;
  if (IsGated(a.kind)) {
    a.x.wide = HalvesAligned(a.x, a.columns);
    a.d_x.wide = HalvesAligned(a.d_x, a.columns);
  }
  Dispatch(elements, a.kind, [&]<Elements E, ActivationKind kKind>() {
    LaunchKernel(launch, Blocks(a), kFlatThreads, 0,
                 a.magnitude != nullptr ? ActivationGradKernel<E, kKind, kMayHaveMagnitude<E>>
                                        : ActivationGradKernel<E, kKind, false>,
                 a);
  });
}

}  // namespace millrace::cuda
