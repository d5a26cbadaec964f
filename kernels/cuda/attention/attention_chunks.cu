#include "kernels/cuda/attention/attention_chunks.h"
#include "kernels/cuda/attention/attention_tile.cuh"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

// Four columns of a row, and where they are.
struct Four {
  int64_t batch, dense;
  int row, head, column;
  bool inside;
};
__device__ __forceinline__ Four FourOf(const ChunkSizes& sizes) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int fours = sizes.depth / 4;
  const int64_t head = index / fours, row = head / sizes.heads;
  return {.batch = row / sizes.rows,
          .dense = index * 4,
          .row = static_cast<int>(row % sizes.rows),
          .head = static_cast<int>(head % sizes.heads),
          .column = static_cast<int>(index % fours) * 4,
          .inside = row < sizes.batch * sizes.rows};
}

template <Elements Mix>
__device__ __forceinline__ void StoreFour(const AttentionHeads& x, int64_t at, const float4& v) {
  *reinterpret_cast<uint2*>(reinterpret_cast<uint16_t*>(x.data) + at) =
      make_uint2(PairOf<Mix>(v.x, v.y), PairOf<Mix>(v.z, v.w));
}

template <Elements Mix>
__device__ __forceinline__ void Keep(const Four& at, const AttentionHeads& out, float* sum,
                                     bool last, const float4& v) {
  if (last)
    StoreFour<Mix>(out, RowAt(out, at.batch, at.row, at.head) + at.column, v);
  else
    *reinterpret_cast<float4*>(sum + at.dense) = v;
}

template <Elements Mix>
__global__ void __launch_bounds__(kThreads) SumKernel(const ChunkSumArgs a) {
  BeginKernel();
  const Four at = FourOf(a.sizes);
  if (!at.inside) return;
  float4 v = a.turn.first ? make_float4(0, 0, 0, 0) : FourAt(a.sum + at.dense);
  if (a.part.data != nullptr) {
    const int64_t row = RowAt(a.part, at.batch, at.row, at.head);
    const float4 p = LoadFour<Mix>(a.part, row, at.column, a.sizes.depth);
    v = make_float4(v.x + p.x, v.y + p.y, v.z + p.z, v.w + p.w);
  }
  Keep<Mix>(at, a.out, a.sum, a.turn.last, v);
}

template <Elements Mix>
__global__ void __launch_bounds__(kThreads) MergeKernel(const ChunkMergeArgs a) {
  BeginKernel();
  const Four at = FourOf(a.sizes);
  if (!at.inside) return;
  const int64_t stat = (at.batch * a.sizes.heads + at.head) * a.sizes.rows + at.row;
  const int64_t row = RowAt(a.part, at.batch, at.row, at.head);
  float4 v = LoadFour<Mix>(a.part, row, at.column, a.sizes.depth);
  float lse = a.lse_part[stat];
  if (!a.turn.first) {
    const float part = lse, before = a.lse_before[stat];
    lse = fmaxf(part, before) + log1pf(expf(-fabsf(part - before)));
    const float old = expf(before - lse), now = expf(part - lse);
    const float4 s = FourAt(a.sum + at.dense);
    v = make_float4(s.x * old + v.x * now, s.y * old + v.y * now, s.z * old + v.z * now,
                    s.w * old + v.w * now);
  }
  if (at.column == 0) a.lse[stat] = lse;
  Keep<Mix>(at, a.out, a.sum, a.turn.last, v);
}

template <class Args>
void Launch4(void (*kernel)(Args), const Args& args, const Launch& launch) {
  const ChunkSizes& s = args.sizes;
  const int64_t fours = s.batch * s.rows * s.heads * (s.depth / 4);
  LaunchKernel(launch, static_cast<unsigned>(CeilDiv(fours, kThreads)), kThreads, 0, kernel, args);
}

}  // namespace

void LaunchChunkSum(const ChunkSumArgs& args, const Launch& launch) {
  Launch4(args.out.f16 ? SumKernel<Elements::kAnyF16> : SumKernel<Elements::kAny>, args, launch);
}
void LaunchChunkMerge(const ChunkMergeArgs& args, const Launch& launch) {
  Launch4(args.out.f16 ? MergeKernel<Elements::kAnyF16> : MergeKernel<Elements::kAny>, args,
          launch);
}

}  // namespace millrace::cuda
