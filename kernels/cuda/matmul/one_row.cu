#include "kernels/cuda/matmul/one_row.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

using namespace one_row;

constexpr int kPass = kWarp * kPack;  // elements of a line that a warp reads at once
constexpr int kAhead = 8;             // packs of a thread that are in flight

// A warp forms `each` neighbouring units, one after the other. Packs of all their lines are one
// stream, kAhead of which are on their way.
template <RowFinish kFinish>
__global__ void __launch_bounds__(kThreads, kLinesOf<kFinish> == 2 ? 3 : 4)
    OneRowKernel(const OneRowArgs a, const int each) {
  constexpr int kLines = kLinesOf<kFinish>, kSteps = kAhead / kLines;
  extern __shared__ uint4 row[];
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp,
            first = warp * each, last = min(first + each, a.units),
            passes = (a.depth + kPass - 1) / kPass;
  const auto column_of = [&](int unit) { return ColumnOf(a, kFinish, unit); };
  const auto line_of = [&](int column, int h) {
    return a.weight + (column + int64_t{h} * a.gap) * a.depth;
  };
  // The pack that is read next.
  int next = first, next_pass = 0;
  const uint16_t* line = line_of(column_of(first), 0);
  const auto read = [&](uint4(&w)[kLines]) {
    const int at = next_pass * kPass + lane * kPack;
#pragma unroll
    for (int h = 0; h < kLines; ++h)
      w[h] = next < last && at < a.depth ? ReadOnce(line + int64_t{h} * a.gap * a.depth + at)
                                         : make_uint4(0, 0, 0, 0);
    if (++next_pass == passes) next_pass = 0, line = line_of(column_of(++next), 0);
  };
  uint4 w[kSteps][kLines];
  const auto read_first = [&] {
    if (a.norm != RowNorm::kNone) FetchNorm(a, row);
#pragma unroll
    for (int n = 0; n < kSteps; ++n) read(w[n]);
  };
  if (a.constant) read_first();
  BeginKernel();
  if (!a.constant) read_first();
  float bias[kLines] = {};
  float2 turn{};
  const int64_t position = kFinish == RowFinish::kRotate ? a.at[0] : 0;
  // What the end of a unit needs.
  const auto read_end = [&](int unit) {
    if (unit >= last) return;
    if (a.bias != nullptr)
#pragma unroll
      for (int h = 0; h < kLines; ++h) bias[h] = OfBF16(a.bias[column_of(unit) + h * a.gap]);
    if constexpr (kFinish == RowFinish::kRotate)
      turn = reinterpret_cast<const float2*>(a.table)[position * a.gap + unit % a.gap];
  };
  read_end(first);
  FormRow<false>(a, row);
  __syncthreads();
  float sum[kLines] = {};
  int unit = first, pass = 0;
  const int total = (last - first) * passes;
  for (int begin = 0; begin < total; begin += kSteps) {
#pragma unroll
    for (int n = 0; n < kSteps; ++n) {
      if (begin + n >= total) break;
      float x[kPack];
      ToFloats(row[min(pass * kWarp + lane, a.depth / kPack - 1)], x);
#pragma unroll
      for (int h = 0; h < kLines; ++h) {
        float f[kPack];
        ToFloats(w[n][h], f);
#pragma unroll
        for (int i = 0; i < kPack; ++i) sum[h] = __fmaf_rn(x[i], f[i], sum[h]);
      }
      read(w[n]);
      if (++pass < passes) continue;
#pragma unroll
      for (int h = 0; h < kLines; ++h) sum[h] = __fadd_rn(WarpSum(sum[h]), bias[h]);
      if (lane == 0) StoreUnit<kFinish>(a, unit, column_of(unit), sum, turn);
#pragma unroll
      for (int h = 0; h < kLines; ++h) sum[h] = 0;
      pass = 0;
      read_end(++unit);
    }
  }
}

template <RowFinish kFinish>
void LaunchFinish(const OneRowArgs& args, const Launch& launch) {
  // Where units are many, as many warps as three blocks to a multiprocessor have; else a unit to a
  // warp.
  const int64_t warps = int64_t{3} * kWarps * launch.sms;
  const int64_t each = args.units <= 2 * warps ? 1 : CeilDiv(args.units, warps);
  const int64_t rows = args.norm == RowNorm::kNone ? 1 : args.norm_bias == nullptr ? 2 : 3;
  // What it reads first needs nothing of the kernel before: it begins beside that one.
  Launch beside = launch;
  beside.one_row = true;
  if (args.constant && launch.early == EarlyLaunch::kEnd) beside.early = EarlyLaunch::kBegin;
  constexpr size_t kMostShared = 3 * kMostRowNorm * sizeof(uint16_t);
  static_assert(kMostRowDepth * sizeof(uint16_t) <= kMostShared);
  MR_CUDA(cudaFuncSetAttribute(OneRowKernel<kFinish>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kMostShared));
  LaunchKernel(beside, static_cast<unsigned>(CeilDiv(args.units, kWarps * each)), kThreads,
               static_cast<size_t>(rows * args.depth) * sizeof(uint16_t), OneRowKernel<kFinish>,
               args, static_cast<int>(each));
}

}  // namespace

void LaunchOneRow(const OneRowArgs& args, const Launch& launch) {
  switch (args.finish) {
    case RowFinish::kNone:
      return LaunchFinish<RowFinish::kNone>(args, launch);
    case RowFinish::kGelu:
      return LaunchFinish<RowFinish::kGelu>(args, launch);
    case RowFinish::kSwiglu:
      return LaunchFinish<RowFinish::kSwiglu>(args, launch);
    case RowFinish::kRotate:
      return LaunchFinish<RowFinish::kRotate>(args, launch);
  }
}

}  // namespace millrace::cuda
