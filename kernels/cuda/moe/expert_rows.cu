#include "kernels/cuda/flat.cuh"
#include "kernels/cuda/moe/expert_rows_launch.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

// A thread has a pack of eight elements of a row of `out`.
struct Place {
  bool inside;
  uint32_t row;
  int column, left;

  __device__ explicit Place(const ExpertRowsArgs& a) {
    const uint32_t pack = blockIdx.x * kFlatThreads + threadIdx.x;
    inside = pack < a.packs;
    row = a.row_packs.Quotient(pack);
    column = static_cast<int>(pack - row * a.row_packs.divisor) * kPack;
    left = a.columns - column;
  }
};

template <Elements E>
__global__ void __launch_bounds__(kFlatThreads) DispatchKernel(const ExpertRowsArgs a) {
  BeginKernel();
  const Place p(a);
  if (!p.inside || (a.live != nullptr && p.row >= static_cast<uint32_t>(*a.live))) return;
  const int32_t pair = a.places[p.row];
  if (pair < 0) {  // without `live` only
    Store<E>(a.out, p.row * a.out.stride + p.column, p.left, Floats{});
    if (a.weights != nullptr && p.column == 0) a.out_weights[p.row] = 0;
    return;
  }
  const int64_t from = a.top_k.Quotient(static_cast<uint32_t>(pair));
  Store<E>(a.out, p.row * a.out.stride + p.column, p.left,
           Load<E>(a.x, from * a.x.stride + p.column, p.left));
  if (a.weights != nullptr && p.column == 0) a.out_weights[p.row] = a.weights[pair];
}

template <Elements E>
__global__ void __launch_bounds__(kFlatThreads) CombineKernel(const ExpertRowsArgs a) {
  BeginKernel();
  const Place p(a);
  if (!p.inside) return;
  const int top_k = static_cast<int>(a.top_k.divisor);
  const int64_t first = int64_t{p.row} * top_k;
  Floats sum{};
#pragma unroll 4
  for (int k = 0; k < top_k; ++k) {
    const int64_t slot = a.places[first + k];
    const Floats y = Load<E>(a.x, slot * a.x.stride + p.column, p.left);
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum.v[i] = __fadd_rn(sum.v[i], y.v[i]);
  }
  Store<E>(a.out, p.row * a.out.stride + p.column, p.left, sum);
  if (a.weights != nullptr && p.column == 0)
    for (int k = 0; k < top_k; ++k) a.out_weights[first + k] = a.weights[a.places[first + k]];
}

template <class F>
void ForElements(Elements elements, F&& f) {
  if (elements == Elements::kBF16)
    f.template operator()<Elements::kBF16>();
  else if (elements == Elements::kF32)
    f.template operator()<Elements::kF32>();
  else
    f.template operator()<Elements::kAny>();
}

unsigned Blocks(const ExpertRowsArgs& args) {
  return static_cast<unsigned>(CeilDiv(args.packs, kFlatThreads));
}

}  // namespace

void LaunchDispatch(const ExpertRowsArgs& args, Elements elements, const Launch& launch) {
  if (args.packs == 0) return;
  ForElements(elements, [&]<Elements E>() {
    LaunchKernel(launch, Blocks(args), kFlatThreads, 0, DispatchKernel<E>, args);
  });
}

void LaunchCombine(const ExpertRowsArgs& args, Elements elements, const Launch& launch) {
  if (args.packs == 0) return;
  ForElements(elements, [&]<Elements E>() {
    LaunchKernel(launch, Blocks(args), kFlatThreads, 0, CombineKernel<E>, args);
  });
}

}  // namespace millrace::cuda
