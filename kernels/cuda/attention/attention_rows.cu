// Causal attention on Hopper's tensor cores: a block has tiles of queries, 64 of them to each
// warpgroup that multiplies, and walks over the keys that they see, from their own to the first.
//
// Products  scores = q k^T of both in shared memory; out += p v with p as it is in registers. A
//           step's exponentials are taken while the step before is multiplied by its values.
// Softmax   p = 2^(score - level), scores times log2(e). A row's level is the largest score of its
//           own tile's keys. A step's p are taken by the level of before, and await no maximum:
//           only where one exceeds kMostWeight, rounded, does the row's level become its largest
//           score so far, and the step's are taken again; out and sum are multiplied by
//           2^(old - new). Sums are of f32, before p is rounded.
// Units     A tile of queries of a head. Those of later queries have more steps, and come first
//           within a set of `at_once` heads, whose keys and values stay in the second cache. Blocks
//           take them in turn, back and forth: of a set whose units are even times the blocks each
//           gets about as many steps.
// Turns     With heads of 128 the two warpgroups issue their products in turn: one multiplies while
//           the other takes exponentials. With 64 that gains nothing.
// Source    T. Dao, FlashAttention-2, 2023; J. Shah et al., FlashAttention-3, 2024, of turns.
#include <cuda_bf16.h>

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
constexpr int kTurnBarriers = 1 + kGroups;  // 0 is the block's, the next ones the warpgroups'
constexpr float kMostWeight = 65536;

struct RowsArgs {
  AttentionArgs of;
  int tiles = 0, heads = 0, at_once = 0;  // of queries; B*H; heads of a set
};
struct RowsMaps {
  CUtensorMap queries, keys, values, out;
};

struct alignas(16) RowsUnit {
  int batch, head, tile;
};
__device__ __forceinline__ RowsUnit UnitOf(const RowsArgs& a, int unit) {
  const int of_set = a.at_once * a.tiles, set = unit / of_set, first = set * a.at_once,
            heads = min(a.at_once, a.heads - first), rest = unit - set * of_set,
            head = first + rest % heads;
  return {head / a.of.sizes.heads, head % a.of.sizes.heads, a.tiles - 1 - rest / heads};
}
// The block's units in order.
class RowsUnits {
 public:
  __device__ __forceinline__ explicit RowsUnits(const RowsArgs& a) : a_(a) {}
  // Which UnitOf knows; below 0: there is none any more.
  __device__ __forceinline__ int Next() {
    const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x),
              at = first_ + (back_ ? blocks - 1 - block : block);
    first_ += blocks;
    back_ = !back_;
    return at < a_.tiles * a_.heads ? at : -1;
  }

 private:
  const RowsArgs& a_;
  int first_ = 0;
  bool back_ = false;
};

template <int kDepth>
struct RowsShared {
  static constexpr int kBoxes = kDepth / kBoxDepth, kStages = kDepth == 64 ? 4 : 2, kTiles = 2;
  static constexpr int kQueryBox = kQueries * kLineBytes, kKeyBox = kKeys * kLineBytes;
  std::byte queries[kTiles][kBoxes][kQueryBox];
  std::byte keys[kStages][kBoxes][kKeyBox], values[kStages][kBoxes][kKeyBox];
  RowsUnit units[kTiles];  // whose queries are there
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

// By one thread, which says what the units are: others count them, and divide nothing.
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
  RowsUnits units(a);
  for (int i = units.Next(); i >= 0; i = units.Next()) {
    const RowsUnit unit = UnitOf(a, i);
    WaitFor(SharedAddress(&s.queries_empty[tiles.stage]), tiles.parity ^ 1);
    s.units[tiles.stage] = unit;
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
  }
}

// f(which of the lane's two rows, step of 16 keys, register) for the registers of a p of kN keys.
template <int kN, class F>
__device__ __forceinline__ void ForEachOfP(F&& f) {
#pragma unroll
  for (int step = 0; step < kN / 16; ++step)
#pragma unroll
    for (int i = 0; i < 4; ++i) f(i % 2, step, i);
}

template <int kDepth>
class RowsMultiplier {
 public:
  using Shared = RowsShared<kDepth>;
  static_assert(kQueries == kKeys, "a tile's own keys are one tile");

  __device__ __forceinline__ RowsMultiplier(Shared& s, const RowsArgs& a, const RowsMaps& maps)
      : s_(s),
        a_(a),
        maps_(maps),
        group_(Uniform(static_cast<int>(threadIdx.x) / kWarpgroup) - 1),
        warp_(static_cast<int>(threadIdx.x) % kWarpgroup / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        scale_(a.of.scale * kLog2E) {}

  __device__ __forceinline__ void Run() {
    RowsUnits units(a_);
    int done = -1;
    if (group_ == 1) EndTurn();
    while (units.Next() >= 0) {
      float out[kDepth / 2] = {};
      Weights p, q;
      const RowsUnit unit = AwaitUnit();
      group_ == 0 ? Begin<kKeys / 2>(p) : Begin<kKeys>(p);
      if (done >= 0) GiveQueriesBack(done);
      AwaitValues();
      // Weights that are multiplied are in use until products are awaited: a step's are others.
      for (int tile = Uniform(unit.tile);; tile -= 2) {
        if (tile == 0) {
          End(out, p);
          break;
        }
        Step(out, q, p);
        if (tile == 1) {
          End(out, q);
          break;
        }
        Step(out, p, q);
      }
      Finish(unit, out);
      done = tiles_.stage;
      tiles_.Next(Shared::kTiles);
    }
    WaitForReads();
    if (group_ == 0) BeginTurn();  // the other's last one
  }

 private:
  using Weights = uint32_t[kKeys / 16][4];  // p, as products take them from registers

  // ---- a unit: Begin, a Step to each tile of earlier keys, End, Finish

  __device__ __forceinline__ RowsUnit AwaitUnit() {
    WaitFor(SharedAddress(&s_.queries_full[tiles_.stage]), tiles_.parity);
    queries_ = SharedAddress(s_.queries[tiles_.stage]) + group_ * kBoxBytes;
    return s_.units[tiles_.stage];
  }
  // The tile's own keys, of which its first queries see half.
  template <int kN>
  __device__ __forceinline__ void Begin(Weights& p) {
    float x[kN / 2];
    BeginTurn();
    FormScores<kN>(x);
    EndTurn();
    WaitForProducts<0>();
    GiveBack(s_.keys_empty[keys_.stage]);
    keys_.Next(Shared::kStages);
    Mask<kN>(x);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      levels_[half] = Largest<kN>(x, half);
      scaled_[half] = levels_[half] * scale_;
    }
    Exponentials<kN>(p, sums_, x);
#pragma unroll
    for (int step = kN / 16; step < kKeys / 16; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) p[step][i] = 0;
  }
  // out += p values; next is of the next keys.
  __device__ __forceinline__ void Step(float (&out)[kDepth / 2], Weights& next, const Weights& p) {
    float x[kKeys / 2], sums[2], factors[2];
    BeginTurn();
    FormScores<kKeys>(x);
    AddValues(out, p);
    EndTurn();
    WaitForProducts<1>();
    int raised = 0, again;
#pragma unroll 1
    do {
      Exponentials<kKeys>(next, sums, x);
      again = __any_sync(0xffffffffu, Most(next) > kMostWeight) && raised == 0;
      if (again) {
        RaiseLevels(factors, next, x);
        raised = 1;
      }
      // One loop with one way out, or the compiler makes two copies of it; sums are formed in it,
      // or all exponentials stay until they are.
      asm volatile("" : "+r"(again), "+f"(sums[0]), "+f"(sums[1]));
    } while (again);
    sums_[0] += sums[0];
    sums_[1] += sums[1];
    GiveBack(s_.keys_empty[keys_.stage]);
    keys_.Next(Shared::kStages);
    // The compiler takes no exponential past a wait for a barrier. Where products are awaited
    // without one ahead, it takes all of them behind.
    const int given = values_.stage;
    values_.Next(Shared::kStages);
    AwaitValues();
    WaitForProducts<0>();
    GiveBack(s_.values_empty[given]);
    if (raised != 0) Multiply(out, factors);
  }
  __device__ __forceinline__ void End(float (&out)[kDepth / 2], const Weights& p) {
    BeginTurn();
    AddValues(out, p);
    EndTurn();
    WaitForProducts<0>();
    GiveBack(s_.values_empty[values_.stage]);
    values_.Next(Shared::kStages);
  }
  // The warp's own lines of queries, which nobody reads any more, are room for results on their
  // way.
  __device__ __forceinline__ void Finish(const RowsUnit& unit, float (&out)[kDepth / 2]) const {
    const int first = unit.tile * kQueries + group_ * 64 + warp_ * 16;
    float factors[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = sums_[half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      factors[half] = __fdividef(1.0f, sum);
      const int row = first + half * 8 + lane_ / 4;
      const AttentionLse& lse = a_.of.lse;
      if (lse.data != nullptr && lane_ % 4 == 0 && row < a_.of.sizes.length)
        lse.data[unit.batch * lse.batch_stride + unit.head * lse.head_stride +
                 row * lse.row_stride] = fmaf(levels_[half], a_.of.scale, __logf(sum));
    }
    Multiply(out, factors);
    WarpgroupBarrier(group_ + 1);
    StageRows<kDepth>(queries_, Shared::kQueryBox, warp_ * 16, out, 1.0f);
    FenceSharedWrites();
    __syncwarp();
    if (IsElected()) {
#pragma unroll
      for (int box = 0; box < Shared::kBoxes; ++box)
        StoreBox(maps_.out, queries_ + box * Shared::kQueryBox + warp_ * 16 * kLineBytes,
                 unit.head * kDepth + box * kBoxDepth, first, unit.batch);
      CommitStores();
    }
  }

  // ---- what others wait for

  __device__ __forceinline__ void GiveBack(uint64_t& empty) const {
    if (lane_ == 0) Arrive(SharedAddress(&empty));
  }
  // Once results have left them: in the next unit, so it is seldom awaited.
  __device__ __forceinline__ void GiveQueriesBack(int tile) const {
    WaitForReads();  // of the thread that stores
    __syncwarp();
    GiveBack(s_.queries_empty[tile]);
  }
  __device__ __forceinline__ void AwaitValues() const {
    WaitFor(SharedAddress(&s_.values_full[values_.stage]), values_.parity);
  }
  // Between these a warpgroup issues products, and not both at once.
  __device__ __forceinline__ void BeginTurn() const {
    if constexpr (kDepth == 128)
      asm volatile("bar.sync %0, %1;"
                   :
                   : "r"(kTurnBarriers + group_), "n"(kGroups * kWarpgroup)
                   : "memory");
  }
  __device__ __forceinline__ void EndTurn() const {
    if constexpr (kDepth == 128)
      asm volatile("bar.arrive %0, %1;"
                   :
                   : "r"(kTurnBarriers + 1 - group_), "n"(kGroups * kWarpgroup)
                   : "memory");
  }

  // ---- products

  // Begins x [64 queries, kN keys] of the first keys in keys_.
  template <int kN>
  __device__ __forceinline__ void FormScores(float (&x)[kN / 2]) const {
    WaitFor(SharedAddress(&s_.keys_full[keys_.stage]), keys_.parity);
    const uint64_t q = TileDescriptor<Lines::kDepth>(queries_),
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
  // Begins out += p values, of those in values_.
  __device__ __forceinline__ void AddValues(float (&out)[kDepth / 2], const Weights& p) const {
    const uint64_t values =
        TileDescriptor<Lines::kRows, Shared::kKeyBox>(SharedAddress(s_.values[values_.stage]));
    FenceSums();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      MultiplyRegisters<kDepth, Lines::kRows>(out, p[step],
                                              values + step * kDepthStep<Lines::kRows>, true);
    CommitProducts();
  }

  // ---- softmax: a lane has two rows, q and q + 8, of 64 queries; x[4 j + 2 row], and the next

  // Of a tile's own keys.
  template <int kN>
  __device__ __forceinline__ void Mask(float (&x)[kN / 2]) const {
    const int query = group_ * 64 + warp_ * 16 + lane_ / 4, key = lane_ % 4 * 2;
#pragma unroll
    for (int j = 0; j < kN / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (key + 8 * j + i % 2 > query + i / 2 * 8) x[4 * j + i] = -INFINITY;
  }
  // Of what the four lanes of a row have.
  __device__ __forceinline__ static float LargestOfRow(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
  }
  template <int kN>
  __device__ __forceinline__ static float Largest(const float (&x)[kN / 2], int row) {
    float most = -INFINITY;
#pragma unroll
    for (int j = 0; j < kN / 8; ++j)
      most = fmaxf(most, fmaxf(x[4 * j + 2 * row], x[4 * j + 2 * row + 1]));
    return LargestOfRow(most);
  }
  // p of kN keys, and the lane's sums of it.
  template <int kN>
  __device__ __forceinline__ void Exponentials(Weights& p, float (&sums)[2],
                                               const float (&x)[kN / 2]) const {
    sums[0] = sums[1] = 0;
    ForEachOfP<kN>([&](int row, int step, int i) {
      const float a = Exp2(fmaf(x[8 * step + 2 * i], scale_, -scaled_[row])),
                  b = Exp2(fmaf(x[8 * step + 2 * i + 1], scale_, -scaled_[row]));
      sums[row] += a + b;
      p[step][i] = PairOfBF16(a, b);
    });
  }
  // The lane's largest p, of one of its rows or both (-1).
  __device__ __forceinline__ static float Most(const Weights& p, int of = -1) {
    const auto pair = [](const uint32_t& x) { return reinterpret_cast<const __nv_bfloat162&>(x); };
    __nv_bfloat162 most = pair(p[0][of == 1]);
    ForEachOfP<kKeys>([&](int row, int step, int i) {
      if (of == -1 || of == row) most = __hmax2(most, pair(p[step][i]));
    });
    return fmaxf(__low2float(most), __high2float(most));
  }
  // Of rows that have outgrown them by p, whatever the warp's other rows do. out is to be
  // multiplied by factors.
  __device__ __forceinline__ void RaiseLevels(float (&factors)[2], const Weights& p,
                                              const float (&x)[kKeys / 2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float level = Largest<kKeys>(x, half), scaled = level * scale_;
      const bool outgrown = LargestOfRow(Most(p, half)) > kMostWeight;
      factors[half] = outgrown ? Exp2(scaled_[half] - scaled) : 1;
      if (outgrown) levels_[half] = level, scaled_[half] = scaled;
      sums_[half] *= factors[half];
    }
  }
  __device__ __forceinline__ static void Multiply(float (&out)[kDepth / 2],
                                                  const float (&factors)[2]) {
#pragma unroll
    for (int i = 0; i < kDepth / 2; ++i) out[i] *= factors[i / 2 % 2];
  }

  Shared& s_;
  const RowsArgs& a_;
  const RowsMaps& maps_;
  const int group_, warp_, lane_;
  const float scale_;
  uint32_t queries_ = 0;
  float levels_[2], scaled_[2], sums_[2];  // scaled_: levels times scale_
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
    Prefetch(maps.out);
  }
  BeginKernel();
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x < kWarp && IsElected()) CopyTiles(s, a, maps);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    RowsMultiplier<kDepth>(s, a, maps).Run();
  }
#endif  // of other architectures nobody launches it
}

template <int kDepth>
void LaunchDepth(const AttentionArgs& args, const Launch& launch) {
  const AttentionSizes& sizes = args.sizes;
  const RowsMaps maps = {MapOfHeads(args.q, sizes, sizes.heads, kQueries),
                         MapOfHeads(args.k, sizes, sizes.kv_heads, kKeys),
                         MapOfHeads(args.v, sizes, sizes.kv_heads, kKeys),
                         MapOfHeads(args.out, sizes, sizes.heads, 16)};
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
