#include <algorithm>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/elementwise/elementwise_launch.h"
#include "kernels/cuda/flat.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

// Units that a thread loads before it uses the first, and blocks on a multiprocessor
// that leave room for them.
constexpr int kUnroll = 4, kBlocksPerSm = 4;
constexpr int64_t kTile = int64_t{kFlatThreads} * kUnroll;  // units of a block

// store(unit, load(unit)) for this thread's units of the block's tile. A whole tile asks no unit
// for itself: else the compiler puts the loads of some behind the stores of others.
template <class Load, class Store>
__device__ __forceinline__ void ForTile(int64_t units, Load&& load, Store&& store) {
  const int64_t own = blockIdx.x * kTile + threadIdx.x;
  if ((blockIdx.x + 1) * kTile <= units) {
    decltype(load(own)) loaded[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) loaded[u] = load(own + u * kFlatThreads);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) store(own + u * kFlatThreads, loaded[u]);
  } else {
#pragma unroll 1
    for (int64_t unit = own; unit < units; unit += kFlatThreads) store(unit, load(unit));
  }
}

template <class A, class B>
struct Two {
  A a;
  B b;
};

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
  BeginKernel();
  using Operands = Two<Unit<A, W>, Unit<B, W>>;
  const int64_t units = n / W;
  ForTile(
      units,
      [&](int64_t unit) {
        return Operands{LoadUnit<A, W>(a, unit), LoadUnit<B, W>(b, unit)};
      },
      [&](int64_t unit, const Operands& x) {
        StoreUnit<Out, W>(out, unit, Sum<A, B, Out, W>(x.a, x.b));
      });
  // Elements that no whole unit holds.
  const int64_t last = units * W + threadIdx.x;
  if (W > 1 && blockIdx.x == 0 && last < n)
    StoreUnit<Out, 1>(out, last,
                      Sum<A, B, Out, 1>(LoadUnit<A, 1>(a, last), LoadUnit<B, 1>(b, last)));
}

// out = x converted, or out += x. Equal dtypes copy bits.
template <Elements X, Elements Out, bool kAccumulate, int W>
__device__ __forceinline__ auto LoadCopied(const Rows& x, const Rows& out, int64_t unit) {
  Two<Unit<X, W>, Unit<Out, W>> loaded{LoadUnit<X, W>(x, unit), {}};
  if constexpr (kAccumulate) loaded.b = LoadUnit<Out, W>(out, unit);
  return loaded;
}
template <Elements X, Elements Out, bool kAccumulate, int W>
__device__ __forceinline__ void StoreCopied(const Rows& out, int64_t unit, const Unit<X, W>& x,
                                            const Unit<Out, W>& old) {
  if constexpr (kAccumulate) {
    StoreUnit<Out, W>(out, unit, Sum<Out, X, Out, W>(old, x));
  } else if constexpr (X == Out) {
    StoreUnit<Out, W>(out, unit, x);
  } else {
    float v[W];
    Widen<X, W>(x, v);
    StoreUnit<Out, W>(out, unit, Narrow<Out, W>(v));
  }
}

template <Elements X, Elements Out, bool kAccumulate, int W>
__global__ void __launch_bounds__(kFlatThreads, kBlocksPerSm)
    CopyKernel(const Rows x, const Rows out, const int64_t n) {
  BeginKernel();
  const int64_t units = n / W;
  ForTile(
      units, [&](int64_t unit) { return LoadCopied<X, Out, kAccumulate, W>(x, out, unit); },
      [&](int64_t unit, const Two<Unit<X, W>, Unit<Out, W>>& loaded) {
        StoreCopied<X, Out, kAccumulate, W>(out, unit, loaded.a, loaded.b);
      });
  const int64_t last = units * W + threadIdx.x;
  if (W > 1 && blockIdx.x == 0 && last < n) {
    const auto loaded = LoadCopied<X, Out, kAccumulate, 1>(x, out, last);
    StoreCopied<X, Out, kAccumulate, 1>(out, last, loaded.a, loaded.b);
  }
}

// Block (x, y): range x, every gridDim.y-th stretch of it.
__global__ void __launch_bounds__(kFlatThreads)
    ZeroRangesKernel(const Rows flat, const __grid_constant__ Ranges ranges) {
  BeginKernel();
  const Range range = ranges.of[blockIdx.x];
  for (int64_t i = range.begin + int64_t{blockIdx.y} * blockDim.x + threadIdx.x; i < range.end;
       i += int64_t{gridDim.y} * blockDim.x) {
    if (flat.bf16)
      reinterpret_cast<uint16_t*>(flat.data)[i] = 0;
    else
      reinterpret_cast<float*>(flat.data)[i] = 0.0f;
  }
}

// f.operator()<E>() with the view's dtype, of those of the mix.
template <Elements Mix, class F>
void WithDType(const Rows& rows, F&& f) {
  if (rows.bf16 || rows.f16)
    f.template operator()<kShortOf<Mix>>();
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
constexpr int kUnit = (kIsShort<E> && ...) ? 8 : 4;

unsigned Blocks(int64_t n, int unit) {
  return static_cast<unsigned>(std::max<int64_t>(1, CeilDiv(n / unit, kTile)));
}

}  // namespace

void LaunchAdd(const Rows& a, const Rows& b, const Rows& out, int64_t n, const Launch& launch) {
  if (n == 0) return;
  WithMixOf(ElementsOf({a, b, out}), [&]<Elements Mix>() {
    WithDType<Mix>(a, [&]<Elements A>() {
      WithDType<Mix>(b, [&]<Elements B>() {
        WithDType<Mix>(out, [&]<Elements Out>() {
          WithUnit<kUnit<A, B, Out>>(a.wide && b.wide && out.wide, [&]<int W>() {
            LaunchKernel(launch, Blocks(n, W), kFlatThreads, 0, AddKernel<A, B, Out, W>, a, b, out,
                         n);
          });
        });
      });
    });
  });
}

void LaunchCopy(const Rows& x, const Rows& out, bool accumulate, int64_t n, const Launch& launch) {
  if (n == 0) return;
  WithMixOf(ElementsOf({x, out}), [&]<Elements Mix>() {
    WithDType<Mix>(x, [&]<Elements X>() {
      WithDType<Mix>(out, [&]<Elements Out>() {
        WithUnit<kUnit<X, Out>>(x.wide && out.wide, [&]<int W>() {
          const unsigned blocks = Blocks(n, W);
          if (accumulate)
            LaunchKernel(launch, blocks, kFlatThreads, 0, CopyKernel<X, Out, true, W>, x, out, n);
          else
            LaunchKernel(launch, blocks, kFlatThreads, 0, CopyKernel<X, Out, false, W>, x, out, n);
        });
      });
    });
  });
}

void LaunchZeroRanges(const Rows& flat, const Ranges& ranges, int64_t longest,
                      const Launch& launch) {
  const auto stretches =
      static_cast<unsigned>(std::min<int64_t>(CeilDiv(longest, kFlatThreads), 64));
  const dim3 grid(static_cast<unsigned>(ranges.count), stretches);
  LaunchKernel(launch, grid, kFlatThreads, 0, ZeroRangesKernel, flat, ranges);
}

}  // namespace millrace::cuda
