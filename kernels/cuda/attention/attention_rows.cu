// Causal attention on Hopper's tensor cores: a block has tiles of queries, 64 of them to each
// warpgroup that multiplies, and walks over the keys that they see, from their own to the first.
//
// Products  scores = q k^T of both in shared memory; out += p v with p as it is in registers. A
//           step's exponentials are taken while the step before is multiplied by its values.
// Softmax   Of a running maximum and sum: out and sum are multiplied by 2^(old - new) when the
//           maximum grows. The sum is of f32, before p is rounded to bf16.
// Units     A tile of queries of a head. Those of later queries have more steps, and come first
//           within a set of `at_once` heads, whose keys and values stay in the second cache. Blocks
//           take them in turn, back and forth: of a set whose units are even times the blocks each
//           gets about as many steps.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/attention/attention_lines.cuh"
#include "kernels/cuda/attention/attention_rows.h"
#include "kernels/cuda/tensor_cores/exp2.cuh"
#include "kernels/cuda/tensor_cores/mma.cuh"
#include "kernels/cuda/tensor_cores/tma.cuh"
#include "kernels/cuda/tensor_cores/wgmma.cuh"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr float kLog2E = 1.4426950408889634f;
constexpr int kGroups = 2;  // warpgroups of a block that multiply, behind the one that copies
constexpr int kQueries = kGroups * 64, kKeys = 128;
constexpr int kRowsThreads = kWarpgroup * (1 + kGroups);

struct RowsArgs {
  AttentionArgs of;
  int tiles = 0, heads = 0, at_once = 0;  // of queries; B*H; heads of a set
};
struct RowsMaps {
  CUtensorMap queries, keys, values;
};

struct RowsUnit {
  int batch, head, tile;
};
__device__ __forceinline__ RowsUnit UnitOf(const RowsArgs& a, int unit) {
  const int of_set = a.at_once * a.tiles, set = unit / of_set, first = set * a.at_once,
            heads = min(a.at_once, a.heads - first), rest = unit - set * of_set,
            head = first + rest % heads;
  return {head / a.of.sizes.heads, head % a.of.sizes.heads, a.tiles - 1 - rest / heads};
}
// f(unit) for every unit of the block.
template <class F>
__device__ __forceinline__ void ForEachUnit(const RowsArgs& a, F&& f) {
  const int units = a.tiles * a.heads, blocks = static_cast<int>(gridDim.x),
            block = static_cast<int>(blockIdx.x);
  for (int first = 0, back = 0; first < units; first += blocks, back ^= 1) {
    const int unit = first + (back ? blocks - 1 - block : block);
    if (unit < units) f(UnitOf(a, unit));
  }
}

template <int kDepth>
struct RowsShared {
  static constexpr int kBoxes = kDepth / kBoxDepth, kStages = kDepth == 64 ? 4 : 2, kTiles = 2;
  static constexpr int kQueryBox = kQueries * kLineBytes, kKeyBox = kKeys * kLineBytes;
  std::byte queries[kTiles][kBoxes][kQueryBox];
  std::byte keys[kStages][kBoxes][kKeyBox], values[kStages][kBoxes][kKeyBox];
  uint64_t queries_full[kTiles], queries_empty[kTiles];
  uint64_t keys_full[kStages], keys_empty[kStages], values_full[kStages], values_empty[kStages];
};

template <int kDepth>
__device__ __forceinline__ void InitRows(RowsShared<kDepth>& s) {
  using Shared = RowsShared<kDepth>;
  constexpr int kWarps = kGroups * kWarpgroup / kWarp;
  for (int i = 0; i < Shared::kTiles; ++i) {
    InitBarrier(SharedAddress(&s.queries_full[i]), 1);
    InitBarrier(SharedAddress(&s.queries_empty[i]), kWarps);
  }
  for (int i = 0; i < Shared::kStages; ++i) {
    InitBarrier(SharedAddress(&s.keys_full[i]), 1);
    InitBarrier(SharedAddress(&s.keys_empty[i]), kWarps);
    InitBarrier(SharedAddress(&s.values_full[i]), 1);
    InitBarrier(SharedAddress(&s.values_empty[i]), kWarps);
  }
  FenceNewBarriers();
}

// By one thread.
template <int kDepth>
__device__ __forceinline__ void CopyTiles(RowsShared<kDepth>& s, const RowsArgs& a,
                                          const RowsMaps& maps) {
  using Shared = RowsShared<kDepth>;
  StageRing tiles, stages;
  const int group = a.of.sizes.heads / a.of.sizes.kv_heads;
  const auto copy = [&](auto& boxes, const CUtensorMap& map, uint32_t full, int head, int row,
                        int batch) {
    ArriveAndExpect(full, sizeof boxes);
#pragma unroll
    for (int box = 0; box < Shared::kBoxes; ++box)
      CopyBox(SharedAddress(boxes[box]), map, full, head * kDepth + box * kBoxDepth, row, batch);
  };
  ForEachUnit(a, [&](const RowsUnit& unit) {
    WaitFor(SharedAddress(&s.queries_empty[tiles.stage]), tiles.parity ^ 1);
    copy(s.queries[tiles.stage], maps.queries, SharedAddress(&s.queries_full[tiles.stage]),
         unit.head, unit.tile * kQueries, unit.batch);
    tiles.Next(Shared::kTiles);
    for (int tile = unit.tile; tile >= 0; --tile) {
      WaitFor(SharedAddress(&s.keys_empty[stages.stage]), stages.parity ^ 1);
      copy(s.keys[stages.stage], maps.keys, SharedAddress(&s.keys_full[stages.stage]),
           unit.head / group, tile * kKeys, unit.batch);
      WaitFor(SharedAddress(&s.values_empty[stages.stage]), stages.parity ^ 1);
      copy(s.values[stages.stage], maps.values, SharedAddress(&s.values_full[stages.stage]),
           unit.head / group, tile * kKeys, unit.batch);
      stages.Next(Shared::kStages);
    }
  });
}

template <int kDepth>
class RowsMultiplier {
 public:
  using Shared = RowsShared<kDepth>;
  static_assert(kQueries == kKeys, "a tile's own keys are one tile");

  __device__ __forceinline__ RowsMultiplier(Shared& s, const RowsArgs& a)
      : s_(s),
        a_(a),
        group_(Uniform(static_cast<int>(threadIdx.x) / kWarpgroup) - 1),
        warp_(static_cast<int>(threadIdx.x) % kWarpgroup / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        scale_(a.of.scale * kLog2E) {}

  __device__ __forceinline__ void Run() {
    ForEachUnit(a_, [&](const RowsUnit& unit) { Do(unit); });
  }

 private:
  __device__ __forceinline__ void Do(const RowsUnit& unit) {
    const uint32_t queries = SharedAddress(s_.queries[tiles_.stage]) + group_ * kBoxBytes;
    float out[kDepth / 2] = {}, factors[2];
    uint32_t p[kKeys / 16][4];
    WaitFor(SharedAddress(&s_.queries_full[tiles_.stage]), tiles_.parity);
    group_ == 0 ? Begin<kKeys / 2>(p, queries) : Begin<kKeys>(p, queries);
    AwaitValues();
#pragma unroll 1
    for (int tile = unit.tile; tile > 0; --tile) {
      float x[kKeys / 2];
      FormScores<kKeys>(x, queries);
      AddValues(out, p);
      WaitForProducts<1>();
      GiveBack(s_.keys_empty[keys_.stage]);
      keys_.Next(Shared::kStages);
      Softmax<kKeys>(x, factors);
      // The compiler takes no exponential past a wait for a barrier. Where the products are awaited
      // without one ahead, it takes all of them behind.
      const int given = values_.stage;
      values_.Next(Shared::kStages);
      AwaitValues();
      WaitForProducts<0>();
      GiveBack(s_.values_empty[given]);
      // Seldom, once most of a row's keys are seen.
      if (__any_sync(0xffffffffu, factors[0] != 1 || factors[1] != 1)) Multiply(out, factors);
      Pack<kKeys>(p, x);
    }
    AddValues(out, p);
    WaitForProducts<0>();
    GiveBack(s_.values_empty[values_.stage]);
    values_.Next(Shared::kStages);
    Finish(unit, queries, out);
    tiles_.Next(Shared::kTiles);
  }

  // The first step, of the tile's own keys, of which its first queries see half.
  template <int kN>
  __device__ __forceinline__ void Begin(uint32_t (&p)[kKeys / 16][4], uint32_t queries) {
    float x[kN / 2], factors[2];
    FormScores<kN>(x, queries);
    WaitForProducts<0>();
    GiveBack(s_.keys_empty[keys_.stage]);
    keys_.Next(Shared::kStages);
    Mask<kN>(x);
    max_[0] = max_[1] = -INFINITY;
    sum_[0] = sum_[1] = 0;
    Softmax<kN>(x, factors);
    Pack<kN>(p, x);
#pragma unroll
    for (int step = kN / 16; step < kKeys / 16; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) p[step][i] = 0;
  }

  __device__ __forceinline__ void GiveBack(uint64_t& empty) const {
    if (lane_ == 0) Arrive(SharedAddress(&empty));
  }

  // Begins x [64 queries, kN keys] of the first keys in keys_.
  template <int kN>
  __device__ __forceinline__ void FormScores(float (&x)[kN / 2], uint32_t queries) const {
    WaitFor(SharedAddress(&s_.keys_full[keys_.stage]), keys_.parity);
    const uint64_t q = TileDescriptor<Lines::kDepth>(queries),
                   k = TileDescriptor<Lines::kDepth>(SharedAddress(s_.keys[keys_.stage]));
    FenceSums();
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step) {
      const int box = step / 4, along = step % 4 * static_cast<int>(kDepthStep<Lines::kDepth>);
      MultiplyTiles<kN, Lines::kDepth, Lines::kDepth>(x, q + (box * Shared::kQueryBox / 16 + along),
                                                      k + (box * Shared::kKeyBox / 16 + along),
                                                      step > 0);
    }
    CommitProducts();
  }
  __device__ __forceinline__ void AwaitValues() const {
    WaitFor(SharedAddress(&s_.values_full[values_.stage]), values_.parity);
  }
  // Begins out += p values, of those in values_.
  __device__ __forceinline__ void AddValues(float (&out)[kDepth / 2],
                                            const uint32_t (&p)[kKeys / 16][4]) const {
    const uint64_t values =
        TileDescriptor<Lines::kRows, Shared::kKeyBox>(SharedAddress(s_.values[values_.stage]));
    FenceSums();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      MultiplyRegisters<kDepth, Lines::kRows>(out, p[step],
                                              values + step * kDepthStep<Lines::kRows>, true);
    CommitProducts();
  }

  // Of a tile's own keys: a lane has queries q and q + 8.
  template <int kN>
  __device__ __forceinline__ void Mask(float (&x)[kN / 2]) const {
    const int query = group_ * 64 + warp_ * 16 + lane_ / 4, key = lane_ % 4 * 2;
#pragma unroll
    for (int j = 0; j < kN / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (key + 8 * j + i % 2 > query + i / 2 * 8) x[4 * j + i] = -INFINITY;
  }
  // Scores become exponentials, which are added to the lane's sums; factors are what out and sums
  // of before are multiplied by.
  template <int kN>
  __device__ __forceinline__ void Softmax(float (&x)[kN / 2], float (&factors)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float max = max_[half];
#pragma unroll
      for (int j = 0; j < kN / 8; ++j)
        max = fmaxf(max, fmaxf(x[4 * j + 2 * half], x[4 * j + 2 * half + 1]));
      max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
      max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
      factors[half] = Exp2((max_[half] - max) * scale_);
      max_[half] = max;
      const float of = max * scale_;
      float sum = sum_[half] * factors[half];
#pragma unroll
      for (int j = 0; j < kN / 8; ++j) {
        float* const pair = &x[4 * j + 2 * half];
        pair[0] = Exp2(fmaf(pair[0], scale_, -of));
        pair[1] = Exp2(fmaf(pair[1], scale_, -of));
        sum += pair[0] + pair[1];
      }
      sum_[half] = sum;
    }
  }
  __device__ __forceinline__ static void Multiply(float (&out)[kDepth / 2],
                                                  const float (&factors)[2]) {
#pragma unroll
    for (int i = 0; i < kDepth / 2; ++i) out[i] *= factors[i / 2 % 2];
  }
  template <int kN>
  __device__ __forceinline__ static void Pack(uint32_t (&p)[kKeys / 16][4],
                                              const float (&x)[kN / 2]) {
#pragma unroll
    for (int step = 0; step < kN / 16; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        p[step][i] = PairOfBF16(x[8 * step + 2 * i], x[8 * step + 2 * i + 1]);
  }

  // And gives the tile of queries back. Its warp's own lines, which nobody reads any more, are room
  // for results.
  __device__ __forceinline__ void Finish(const RowsUnit& unit, uint32_t queries,
                                         float (&out)[kDepth / 2]) const {
    const int first = unit.tile * kQueries + group_ * 64 + warp_ * 16;
    float factors[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = sum_[half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      factors[half] = 1 / sum;
      const int row = first + half * 8 + lane_ / 4;
      const AttentionLse& lse = a_.of.lse;
      if (lse.data != nullptr && lane_ % 4 == 0 && row < a_.of.sizes.length)
        lse.data[unit.batch * lse.batch_stride + unit.head * lse.head_stride +
                 row * lse.row_stride] = fmaf(max_[half], a_.of.scale, logf(sum));
    }
    Multiply(out, factors);
    WarpgroupBarrier(group_ + 1);
    StagedRows<kDepth> rows(queries, Shared::kQueryBox, warp_ * 16, out, 1.0f);
    FenceSharedWrites();
    __syncwarp();
    GiveBack(s_.queries_empty[tiles_.stage]);
    rows.Store(a_.of.out, unit.batch, unit.head, first, a_.of.sizes.length);
  }

  Shared& s_;
  const RowsArgs& a_;
  const int group_, warp_, lane_;
  const float scale_;
  float max_[2], sum_[2];  // of scores, not scaled
  StageRing tiles_, keys_, values_;
};

template <int kDepth>
__global__ void __launch_bounds__(kRowsThreads, 1)
    RowsOfAttention(const __grid_constant__ RowsMaps maps, const __grid_constant__ RowsArgs a) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte memory[];
  RowsShared<kDepth>& s = *reinterpret_cast<RowsShared<kDepth>*>(memory);
  if (threadIdx.x == 0) {
    InitRows(s);
    Prefetch(maps.queries);
    Prefetch(maps.keys);
    Prefetch(maps.values);
  }
  BeginKernel();
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x < kWarp && IsElected()) CopyTiles(s, a, maps);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    RowsMultiplier<kDepth>(s, a).Run();
  }
#endif  // of other architectures nobody launches it
}

template <int kDepth>
void LaunchDepth(const AttentionArgs& args, const Launch& launch) {
  const AttentionSizes& sizes = args.sizes;
  const RowsMaps maps = {MapOfHeads(args.q, sizes, sizes.heads, kQueries),
                         MapOfHeads(args.k, sizes, sizes.kv_heads, kKeys),
                         MapOfHeads(args.v, sizes, sizes.kv_heads, kKeys)};
  RowsArgs a{.of = args};
  a.tiles = static_cast<int>(CeilDiv(sizes.length, kQueries));
  a.heads = static_cast<int>(sizes.batch * sizes.heads);
  const int blocks = std::min(a.tiles * a.heads, launch.sms);
  // As many as keep keys and values in the cache, of the numbers whose units are even times the
  // blocks; the least of these at least.
  constexpr int64_t kCached = 16 << 20;
  const int64_t even = 2 * blocks / std::gcd(2 * blocks, a.tiles),
                bytes = int64_t{sizes.length} * kDepth * 4 * sizes.kv_heads / sizes.heads,
                most = kCached / std::max<int64_t>(bytes, 1);
  a.at_once =
      static_cast<int>(std::min<int64_t>(a.heads, std::max<int64_t>(most / even, 1) * even));
  using Shared = RowsShared<kDepth>;
  static_assert(sizeof(Shared) <= 227 << 10);
  MR_CUDA(cudaFuncSetAttribute(RowsOfAttention<kDepth>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(Shared)));
  LaunchKernel(launch, static_cast<unsigned>(blocks), kRowsThreads, sizeof(Shared),
               RowsOfAttention<kDepth>, maps, a);
}

}  // namespace

void LaunchAttentionRows(const AttentionArgs& args, const Launch& launch) {
  args.sizes.depth == 64 ? LaunchDepth<64>(args, launch) : LaunchDepth<128>(args, launch);
}

}  // namespace millrace::cuda
