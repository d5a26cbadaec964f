#include "kernels/cuda/elementwise_launch.h"
#include "kernels/cuda/flat.cuh"
#include "runtime/base/cuda/cuda_check.h"

namespace millrace::cuda {
namespace {

// Units that a thread loads before it uses the first, and blocks on a multiprocessor that leave room for
// them.
constexpr int kUnroll = 4, kBlocksPerSm = 4;
constexpr int64_t kTile = int64_t{kFlatThreads} * kUnroll;  // units of a block

template <Elements A, Elements B, Elements Out, int W>
__device__ __forceinline__ Unit<Out, W> Sum(const Unit<A, W>& a, const Unit<B, W>& b) {
  float x[W], y[W];
  Widen<A, W>(a, x);
  Widen<B, W>(b, y);
#pragma unroll
  for (int i = 0; i < W; ++i) x[i] = __fadd_rn(x[i], y[i]);
  return Narrow<Out, W>(x);
}

template <Elements A, Elements B, Elements Out, int W>
__global__ void __launch_bounds__(kFlatThreads, kBlocksPerSm)
    AddKernel(const Rows a, const Rows b, const Rows out, const int64_t n) {
  Unit<A, W> x[kUnroll];
  Unit<B, W> y[kUnroll];
  const int64_t units = n / W, own = blockIdx.x * kTile + threadIdx.x;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t unit = own + u * kFlatThreads;
    if (unit < units) x[u] = LoadUnit<A, W>(a, unit), y[u] = LoadUnit<B, W>(b, unit);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t unit = own + u * kFlatThreads;
    if (unit < units) StoreUnit<Out, W>(out, unit, Sum<A, B, Out, W>(x[u], y[u]));
  }
  // Elements that no whole unit holds.
  const int64_t last = units * W + own;
  if (W > 1 && blockIdx.x == 0 && last < n)
    StoreUnit<Out, 1>(out, last, Sum<A, B, Out, 1>(LoadUnit<A, 1>(a, last), LoadUnit<B, 1>(b, last)));
}

// out = x converted, or out += x. Equal dtypes copy bits.
template <Elements X, Elements Out, bool kAccumulate, int W>
__device__ __forceinline__ Unit<Out, W> Copied(const Unit<X, W>& x, const Unit<Out, W>& old) {
  if constexpr (kAccumulate) {
    return Sum<Out, X, Out, W>(old, x);
  } else if constexpr (X == Out) {
    return x;
  } else {
    float v[W];
    Widen<X, W>(x, v);
    return Narrow<Out, W>(v);
  }
}

template <Elements X, Elements Out, bool kAccumulate, int W>
__global__ void __launch_bounds__(kFlatThreads, kBlocksPerSm)
    CopyKernel(const Rows x, const Rows out, const int64_t n) {
  Unit<X, W> in[kUnroll];
  Unit<Out, W> old[kUnroll] = {};
  const int64_t units = n / W, own = blockIdx.x * kTile + threadIdx.x;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t unit = own + u * kFlatThreads;
    if (unit >= units) continue;
    in[u] = LoadUnit<X, W>(x, unit);
    if constexpr (kAccumulate) old[u] = LoadUnit<Out, W>(out, unit);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t unit = own + u * kFlatThreads;
    if (unit < units) StoreUnit<Out, W>(out, unit, Copied<X, Out, kAccumulate, W>(in[u], old[u]));
  }
  const int64_t last = units * W + own;
  if (W > 1 && blockIdx.x == 0 && last < n) {
    Unit<Out, 1> before{};
    if constexpr (kAccumulate) before = LoadUnit<Out, 1>(out, last);
    StoreUnit<Out, 1>(out, last, Copied<X, Out, kAccumulate, 1>(LoadUnit<X, 1>(x, last), before));
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

// f.operator()<W>() with the elements of a unit, at most kMost.
template <int kMost, class F>
void WithUnit(bool wide, F&& f) {
  if (wide)
    f.template operator()<kMost>();
  else
    f.template operator()<1>();
}

template <Elements... E>
constexpr int kUnit = ((E == Elements::kBF16) && ...) ? 8 : 4;

unsigned Blocks(int64_t n, int unit) {
  return static_cast<unsigned>(std::max<int64_t>(1, CeilDiv(n / unit, kTile)));
}

}  // namespace

void LaunchAdd(const Rows& a, const Rows& b, const Rows& out, int64_t n, const Launch& launch) {
  if (n == 0) return;
  WithDType(a, [&]<Elements A>() {
    WithDType(b, [&]<Elements B>() {
      WithDType(out, [&]<Elements Out>() {
        WithUnit<kUnit<A, B, Out>>(a.wide && b.wide && out.wide, [&]<int W>() {
          AddKernel<A, B, Out, W><<<Blocks(n, W), kFlatThreads, 0, launch.stream>>>(a, b, out, n);
        });
      });
    });
  });
  MR_CUDA_LAUNCHED();
}

void LaunchCopy(const Rows& x, const Rows& out, bool accumulate, int64_t n, const Launch& launch) {
  if (n == 0) return;
  WithDType(x, [&]<Elements X>() {
    WithDType(out, [&]<Elements Out>() {
      WithUnit<kUnit<X, Out>>(x.wide && out.wide, [&]<int W>() {
        const unsigned blocks = Blocks(n, W);
        if (accumulate)
          CopyKernel<X, Out, true, W><<<blocks, kFlatThreads, 0, launch.stream>>>(x, out, n);
        else
          CopyKernel<X, Out, false, W><<<blocks, kFlatThreads, 0, launch.stream>>>(x, out, n);
      });
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
