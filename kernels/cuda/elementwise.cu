#include "kernels/cuda/elementwise_launch.h"
#include "kernels/cuda/flat.cuh"
#include "runtime/base/cuda/cuda_check.h"

namespace millrace::cuda {
namespace {

template <Elements A, Elements B, Elements Out>
__global__ void __launch_bounds__(kFlatThreads)
    AddKernel(const Rows a, const Rows b, const Rows out, const int64_t n) {
  Raw<A> x[kFlatUnroll];
  Raw<B> y[kFlatUnroll];
#pragma unroll
  for (int u = 0; u < kFlatUnroll; ++u) {
    const int64_t at = FlatBegin(u);
    if (at >= n) break;
    x[u] = LoadRaw<A>(a, at, Left(n, at));
    y[u] = LoadRaw<B>(b, at, Left(n, at));
  }
#pragma unroll
  for (int u = 0; u < kFlatUnroll; ++u) {
    const int64_t at = FlatBegin(u);
    if (at >= n) break;
    Floats sum = ToFloats<A>(a, x[u]);
    const Floats other = ToFloats<B>(b, y[u]);
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum.v[i] = __fadd_rn(sum.v[i], other.v[i]);
    Store<Out>(out, at, Left(n, at), sum);
  }
}

// out = x converted, or out += x.
template <Elements X, Elements Out, bool kAccumulate>
__global__ void __launch_bounds__(kFlatThreads) CopyKernel(const Rows x, const Rows out, const int64_t n) {
  Raw<X> in[kFlatUnroll];
  Raw<Out> old[kFlatUnroll];
#pragma unroll
  for (int u = 0; u < kFlatUnroll; ++u) {
    const int64_t at = FlatBegin(u);
    if (at >= n) break;
    in[u] = LoadRaw<X>(x, at, Left(n, at));
    if constexpr (kAccumulate) old[u] = LoadRaw<Out>(out, at, Left(n, at));
  }
#pragma unroll
  for (int u = 0; u < kFlatUnroll; ++u) {
    const int64_t at = FlatBegin(u);
    if (at >= n) break;
    if constexpr (kAccumulate) {
      Floats sum = ToFloats<Out>(out, old[u]);
      const Floats more = ToFloats<X>(x, in[u]);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum.v[i] = __fadd_rn(sum.v[i], more.v[i]);
      Store<Out>(out, at, Left(n, at), sum);
    } else if constexpr (X == Out) {
      StoreRaw<Out>(out, at, Left(n, at), in[u]);
    } else {
      Store<Out>(out, at, Left(n, at), ToFloats<X>(x, in[u]));
    }
  }
}

// Block (x, y): range x, every gridDim.y-th stretch of it.
__global__ void __launch_bounds__(kFlatThreads)
    ZeroRangesKernel(const Rows flat, const __grid_constant__ Ranges ranges) {
  const Range range = ranges.of[blockIdx.x];
  for (int64_t i = range.begin + int64_t{blockIdx.y} * blockDim.x + threadIdx.x; i < range.end;
       i += int64_t{gridDim.y} * blockDim.x) {
    if (flat.bf16)
      reinterpret_cast<uint16_t*>(flat.data)[i] = 0;
    else
      reinterpret_cast<float*>(flat.data)[i] = 0.0f;
  }
}

// f.operator()<E>() with the view's dtype.
template <class F>
void WithDType(const Rows& rows, F&& f) {
  if (rows.bf16)
    f.template operator()<Elements::kBF16>();
  else
    f.template operator()<Elements::kF32>();
}

}  // namespace

void LaunchAdd(const Rows& a, const Rows& b, const Rows& out, int64_t n, const Launch& launch) {
  if (n == 0) return;
  const unsigned blocks = FlatBlocks(n);
  if (a.bf16 == b.bf16 && a.bf16 == out.bf16) {
    WithDType(a, [&]<Elements E>() {
      AddKernel<E, E, E><<<blocks, kFlatThreads, 0, launch.stream>>>(a, b, out, n);
    });
  } else {
    constexpr Elements kAny = Elements::kAny;
    AddKernel<kAny, kAny, kAny><<<blocks, kFlatThreads, 0, launch.stream>>>(a, b, out, n);
  }
  MR_CUDA_LAUNCHED();
}

void LaunchCopy(const Rows& x, const Rows& out, bool accumulate, int64_t n, const Launch& launch) {
  if (n == 0) return;
  const unsigned blocks = FlatBlocks(n);
  WithDType(x, [&]<Elements X>() {
    WithDType(out, [&]<Elements Out>() {
      if (accumulate)
        CopyKernel<X, Out, true><<<blocks, kFlatThreads, 0, launch.stream>>>(x, out, n);
      else
        CopyKernel<X, Out, false><<<blocks, kFlatThreads, 0, launch.stream>>>(x, out, n);
    });
  });
  MR_CUDA_LAUNCHED();
}

void LaunchZeroRanges(const Rows& flat, const Ranges& ranges, int64_t longest, const Launch& launch) {
  const auto stretches = static_cast<unsigned>(std::min<int64_t>(CeilDiv(longest, kFlatThreads), 64));
  const dim3 grid(static_cast<unsigned>(ranges.count), stretches);
  ZeroRangesKernel<<<grid, kFlatThreads, 0, launch.stream>>>(flat, ranges);
  MR_CUDA_LAUNCHED();
}

}  // namespace millrace::cuda
