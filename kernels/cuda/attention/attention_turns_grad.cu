// The gradient of causal attention on Hopper's tensor cores, each of its five products once: a
// block keeps keys and values and walks over the queries that see them; d_k and d_v stay in
// registers, and what it adds to d_q goes to memory in its turn (attention_turns.cuh). So every sum
// has one order, and no matrix of score gradients is written.
//
// Rows      A kernel ahead has delta = d_out . out, and lse as a power of two, of every query.
// Products  Two warpgroups of a block multiply, for 64 of its keys each. Scores lie transposed,
//           keys by queries: so p and d_s are operands as they are in registers. d_s goes to shared
//           memory, too, for d_q, which is formed of the keys of both, a step later: one warpgroup
//           may multiply while the other takes exponentials.
// Rounding  p and d_s become bf16 before they enter a product; the scale is applied to sums.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/attention/attention_turns.cuh"
#include "kernels/cuda/attention/attention_turns.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/tensor_cores/exp2.cuh"
#include "kernels/cuda/tensor_cores/tensor_map.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr float kLog2E = 1.4426950408889634f;

// ---- rows

// A block has a tile of queries, kDepth / kPack threads each of them.
template <int kDepth>
__global__ void __launch_bounds__(kStepQueries* kDepth / kPack) RowsKernel(const TurnsArgs a) {
  BeginKernel();
  constexpr int kLanes = kDepth / kPack;
  const AttentionSizes& sizes = a.of.sizes;
  const int tile = static_cast<int>(blockIdx.x) % a.tiles,
            heads = static_cast<int>(blockIdx.x) / a.tiles, head = heads % sizes.heads,
            thread = static_cast<int>(threadIdx.x), row = thread / kLanes, piece = thread % kLanes,
            t = tile * kStepQueries + row;
  const int64_t batch = heads / sizes.heads;
  if (thread < kDepth / kColumns) a.turns[int64_t{blockIdx.x} * (kDepth / kColumns) + thread] = 0;
  if (blockIdx.x == 0 && thread == 0) *a.ticket = 0;
  const bool inside = t < sizes.length;
  float delta = 0;
  if (inside) {
    const auto load = [&](const AttentionHeads& x) {
      const uint16_t* const at = reinterpret_cast<const uint16_t*>(x.data) +
                                 batch * x.batch_stride + t * x.row_stride + head * x.head_stride +
                                 piece * kPack;
      return ToFloats<Elements::kBF16>({.bf16 = true, .wide = true},
                                       Raw<Elements::kBF16>{ReadOnce(at)});
    };
    const Floats x = load(a.of.out), y = load(a.of.d_out);
#pragma unroll
    for (int i = 0; i < kPack; ++i) delta = fmaf(x.v[i], y.v[i], delta);
  }
#pragma unroll
  for (int lane = kLanes / 2; lane > 0; lane /= 2)
    delta += __shfl_xor_sync(0xffffffffu, delta, lane);
  if (piece != 0) return;
  const AttentionLse& lse = a.of.lse;
  StepRows& rows = a.rows[blockIdx.x];
  rows.lse[row] =
      inside ? lse.data[batch * lse.batch_stride + head * lse.head_stride + t * lse.row_stride] *
                   kLog2E
             : INFINITY;
  rows.delta[row] = delta;
}

// ---- products

__device__ __forceinline__ void StoreMatrices(uint32_t row, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(row), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
__device__ __forceinline__ void AddToGlobal(float* to, const float* x) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
}

// Lanes' 16 bytes of a warp's four 8x8 matrices, two below each other and then to the right, of
// lines from `tile` on: those of 16 columns `step`, where LoadMatrices and StoreMatrices have them.
__device__ __forceinline__ uint32_t MatrixAt(uint32_t tile, int first_line, int step) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, matrix = lane / 8, row = lane % 8;
  const int line = first_line + matrix % 2 * 8 + row, chunk = 2 * step + matrix / 2;
  return tile + static_cast<uint32_t>(line * kLineBytes + (chunk ^ row) * 16);
}

// 64 of a unit's keys, or of its values, as left operands: in registers where there is room, for a
// product of 64 columns with both operands in shared memory takes all that this can give.
template <int kDepth>
class OwnLines {
 public:
  // `tile`: of the unit's 128, which have arrived.
  __device__ __forceinline__ OwnLines(uint32_t tile, int group, int warp)
      : tile_(tile + group * kBoxBytes) {
    if constexpr (kHeld)
#pragma unroll
      for (int step = 0; step < kDepth / 16; ++step)
        LoadMatrices(held_[step], MatrixAt(tile_, warp * 16, step));
  }

  // sums [64, 64] = these by 64 lines at `other`, transposed.
  __device__ __forceinline__ void MultiplyBy(float (&sums)[32], uint32_t other) const {
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step) {
      const uint32_t box = static_cast<uint32_t>(step / 4);
      const uint64_t along = static_cast<uint64_t>(step % 4) * kDepthStep<Lines::kDepth>,
                     b = TileDescriptor<Lines::kDepth>(other + box * kBoxBytes) + along;
      if constexpr (kHeld)
        MultiplyRegisters<64, Lines::kDepth>(sums, held_[step], b, step > 0);
      else
        MultiplyTiles<64, Lines::kDepth, Lines::kDepth>(
            sums, TileDescriptor<Lines::kDepth>(tile_ + box * TurnsShared<kDepth>::kKeyBox) + along,
            b, step > 0);
    }
  }

 private:
  static constexpr bool kHeld = kDepth == kBoxDepth;
  uint32_t tile_;
  uint32_t held_[kHeld ? kDepth / 16 : 1][4];
};

// sums [64 keys, D] += x^T y, x in registers, y of 64 queries.
template <int kDepth>
__device__ __forceinline__ void AddProducts(float (&sums)[kDepth / 2], const uint32_t (&x)[4][4],
                                            uint32_t y) {
#pragma unroll
  for (int step = 0; step < kStepQueries / 16; ++step)
    MultiplyRegisters<kDepth, Lines::kRows>(
        sums, x[step], TileDescriptor<Lines::kRows>(y) + step * kDepthStep<Lines::kRows>, true);
}

__device__ __forceinline__ void Pack(uint32_t (&to)[4][4], const float (&x)[32]) {
#pragma unroll
  for (int step = 0; step < 4; ++step)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to[step][i] = PairOfBF16(x[8 * step + 2 * i], x[8 * step + 2 * i + 1]);
}

template <int kDepth>
class Multiplier {
 public:
  using Shared = TurnsShared<kDepth>;

  __device__ __forceinline__ Multiplier(Shared& s, const TurnsArgs& a)
      : s_(s),
        a_(a),
        group_(Uniform(static_cast<int>(threadIdx.x) / kWarpgroup) - 1),
        thread_(static_cast<int>(threadIdx.x) % kWarpgroup),
        warp_(thread_ / kWarp),
        lane_(thread_ % kWarp),
        scale_(a.of.scale * kLog2E) {}

  __device__ __forceinline__ void Run() {
    ForEachUnit<true>(s_, a_, lane_ == 0,
                      [&](const Unit& unit, const StageRing& ring) { Do(unit, ring); });
    __syncwarp();
    if (lane_ == 0) WriteShared(&s_.turns[group_].added[warp_], added_ | kNoMore);
  }

 private:
  __device__ __forceinline__ void Do(const Unit& unit, const StageRing& ring) {
    const auto& keys = s_.keys[ring.stage];
    float d_k[kDepth / 2] = {}, d_v[kDepth / 2] = {};
    int64_t before = -1;  // the columns of the step before that are this warpgroup's
    int head_before = 0, tile_before = 0;
    WaitFor(SharedAddress(&s_.keys_full[ring.stage]), ring.parity);
    const OwnLines<kDepth> own_keys(SharedAddress(keys.keys), group_, warp_),
        own_values(SharedAddress(keys.values), group_, warp_);
    ForEachStep(a_, unit, [&](int head, int tile) {
      const auto& stage = s_.stages[stages_.stage];
      WaitFor(SharedAddress(&s_.stage_full[stages_.stage]), stages_.parity);
      if (tile >= 2 * unit.key_tile + group_) {
        float x[32], d_p[32];
        uint32_t p[4][4], d_s[4][4];
        FenceSums();
        own_keys.MultiplyBy(x, SharedAddress(stage.queries));
        CommitProducts();
        own_values.MultiplyBy(d_p, SharedAddress(stage.d_out));
        CommitProducts();
        WaitForProducts<1>();
        const StepRows& rows = s_.rows[stages_.stage];
        Exponentials(x, rows);
        const bool own = tile == 2 * unit.key_tile + group_;
        if (own) Mask(x);
        Pack(p, x);
        FenceSums();
        AddProducts<kDepth>(d_v, p, SharedAddress(stage.d_out));
        CommitProducts();
        WaitForProducts<1>();
        Gradients(x, d_p, rows);
        if (own) Mask(d_p);
        Pack(d_s, d_p);
        StoreScores(d_s);
        FenceSums();
        AddProducts<kDepth>(d_k, d_s, SharedAddress(stage.queries));
        CommitProducts();
      } else {  // all of these keys come behind all of the queries
        StoreScores({});
      }
      if (before >= 0) {
        float d_q[kColumns / 2];
        FormQueries(d_q, keys);
        WaitForProducts<1>();
        if (lane_ == 0) Arrive(SharedAddress(&s_.stage_empty[stages_.stage]));
        WaitForProducts<0>();
        AddQueries(unit, before, head_before, tile_before, d_q);
      } else {
        WaitForProducts<0>();
        if (lane_ == 0) Arrive(SharedAddress(&s_.stage_empty[stages_.stage]));
      }
      stages_.Next(Shared::kStages);
      before = ColumnsOf<kDepth>(TileOf(a_, unit, head, tile), group_, step_++);
      head_before = head, tile_before = tile;
    });
    if (before >= 0) {
      float d_q[kColumns / 2];
      FormQueries(d_q, keys);
      WaitForProducts<0>();
      if (lane_ == 0) Arrive(SharedAddress(&s_.keys_empty[ring.stage]));
      AddQueries(unit, before, head_before, tile_before, d_q);
    } else if (lane_ == 0) {
      Arrive(SharedAddress(&s_.keys_empty[ring.stage]));
    }
    StoreKeys(a_.of.d_v, unit, d_v, 1.0f);
    StoreKeys(a_.of.d_k, unit, d_k, a_.of.scale);
  }

  // Of the lane's two queries of the step's eight from 8 j on.
  __device__ __forceinline__ float2 PairOf(const float (&of)[kStepQueries], int j) const {
    return *reinterpret_cast<const float2*>(&of[8 * j + lane_ % 4 * 2]);
  }
  // Scores become p.
  __device__ __forceinline__ void Exponentials(float (&x)[32], const StepRows& rows) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 lse = PairOf(rows.lse, j);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        x[4 * j + i] = Exp2(fmaf(x[4 * j + i], scale_, i % 2 == 0 ? -lse.x : -lse.y));
    }
  }
  // d_p becomes d_s.
  __device__ __forceinline__ void Gradients(const float (&p)[32], float (&d_p)[32],
                                            const StepRows& rows) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 delta = PairOf(rows.delta, j);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        d_p[4 * j + i] = p[4 * j + i] * (d_p[4 * j + i] - (i % 2 == 0 ? delta.x : delta.y));
    }
  }
  // Zeros where the key comes behind the query, of the 64 of these keys' own places.
  __device__ __forceinline__ void Mask(float (&x)[32]) const {
    const int key = warp_ * 16 + lane_ / 4, query = lane_ % 4 * 2;
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (key + i / 2 * 8 > query + 8 * j + i % 2) x[4 * j + i] = 0;
  }
  // Those of this step, where whoever forms its d_q finds them.
  __device__ __forceinline__ void StoreScores(const uint32_t (&d_s)[4][4]) {
    const int buffer = static_cast<int>(step_ % 2), key = group_ * 64 + warp_ * 16;
    const uint32_t tile = SharedAddress(s_.d_scores[buffer]);
    WaitFor(SharedAddress(&s_.scores_empty[buffer]), (step_ / 2 + 1) % 2);
#pragma unroll
    for (int step = 0; step < 4; ++step) StoreMatrices(MatrixAt(tile, key, step), d_s[step]);
    FenceSharedWrites();
    __syncwarp();
    if (lane_ == 0) Arrive(SharedAddress(&s_.scores_full[buffer]));
  }

  // Begins these columns of d_q / scale of the step before, [64 queries, 64].
  template <class Keys>
  __device__ __forceinline__ void FormQueries(float (&sums)[kColumns / 2], const Keys& keys) {
    const unsigned before = step_ - 1;
    const int buffer = static_cast<int>(before % 2);
    WaitFor(SharedAddress(&s_.scores_full[buffer]), before / 2 % 2);
    const uint64_t scores = TileDescriptor<Lines::kRows>(SharedAddress(s_.d_scores[buffer])),
                   columns = TileDescriptor<Lines::kRows>(
                       SharedAddress(keys.keys[kDepth > kColumns ? group_ : 0]));
    FenceSums();
#pragma unroll
    for (int step = 0; step < kUnitKeys / 16; ++step)
      MultiplyTiles<kColumns, Lines::kRows, Lines::kRows>(
          sums, scores + step * kDepthStep<Lines::kRows>, columns + step * kDepthStep<Lines::kRows>,
          step > 0);
    CommitProducts();
  }

  // Adds them, in turn; the last one has it all.
  __device__ __forceinline__ void AddQueries(const Unit& unit, int64_t at, int head, int tile,
                                             float (&x)[kColumns / 2]) {
    if (lane_ == 0) Arrive(SharedAddress(&s_.scores_empty[(step_ - 1) % 2]));
    constexpr int kPieces = kColumns / 8, kPieceFloats = kWarpgroup * 4;  // four to a lane
    float* const sums = a_.sums + at * (kStepQueries * kColumns) + thread_ * 4;
    const bool first = unit.key_tile == 0, last = unit.key_tile == tile / 2;
    while (ReadShared(&s_.turns[group_].allowed) <= added_) continue;
    if (last) {
      if (!first)
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          const float4 others = __ldcg(reinterpret_cast<const float4*>(sums + i * kPieceFloats));
          x[4 * i] += others.x, x[4 * i + 1] += others.y;
          x[4 * i + 2] += others.z, x[4 * i + 3] += others.w;
        }
      StoreQueries(unit, head, tile, x);
    } else if (first) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i)
        __stcg(reinterpret_cast<float4*>(sums + i * kPieceFloats),
               make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]));
    } else {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) AddToGlobal(sums + i * kPieceFloats, &x[4 * i]);
    }
    if (thread_ == 0) {
      while (added_ - ReadShared(&s_.turns[group_].passed_on) >= kNextTurns) continue;
      s_.next[group_][added_ % kNextTurns] = {last ? nullptr : a_.turns + at,
                                              static_cast<unsigned>(unit.key_tile) + 1};
    }
    ++added_;
    __syncwarp();
    if (lane_ == 0) WriteShared(&s_.turns[group_].added[warp_], added_);
  }

  __device__ __forceinline__ void StoreQueries(const Unit& unit, int head, int tile,
                                               const float (&x)[kColumns / 2]) const {
    const AttentionHeads& to = a_.of.d_q;
    const int column = (kDepth > kColumns ? group_ * kColumns : 0) + lane_ % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile * kStepQueries + warp_ * 16 + half * 8 + lane_ / 4;
      if (row >= a_.of.sizes.length) continue;
      uint16_t* const at = reinterpret_cast<uint16_t*>(to.data) + unit.batch * to.batch_stride +
                           row * to.row_stride + head * to.head_stride + column;
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j)
        *reinterpret_cast<uint32_t*>(at + 8 * j) =
            PairOfBF16(x[4 * j + 2 * half] * a_.of.scale, x[4 * j + 2 * half + 1] * a_.of.scale);
    }
  }
  __device__ __forceinline__ void StoreKeys(const AttentionHeads& to, const Unit& unit,
                                            const float (&x)[kDepth / 2], float factor) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = unit.key_tile * kUnitKeys + group_ * 64 + warp_ * 16 + half * 8 + lane_ / 4;
      if (row >= a_.of.sizes.length) continue;
      uint16_t* const at = reinterpret_cast<uint16_t*>(to.data) + unit.batch * to.batch_stride +
                           row * to.row_stride + unit.kv_head * to.head_stride + lane_ % 4 * 2;
#pragma unroll
      for (int j = 0; j < kDepth / 8; ++j)
        *reinterpret_cast<uint32_t*>(at + 8 * j) =
            PairOfBF16(x[4 * j + 2 * half] * factor, x[4 * j + 2 * half + 1] * factor);
    }
  }

  Shared& s_;
  const TurnsArgs& a_;
  const int group_, thread_, warp_, lane_;
  const float scale_;
  unsigned step_ = 0, added_ = 0;  // since the block began
  StageRing stages_;
};

// ---- the kernel

template <int kDepth>
__global__ void __launch_bounds__(kTurnsThreads, 1)
    TurnsKernel(const __grid_constant__ TurnsMaps maps, const __grid_constant__ TurnsArgs a) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte memory[];
  TurnsShared<kDepth>& s = *reinterpret_cast<TurnsShared<kDepth>*>(memory);
  if (threadIdx.x == 0) InitTurns(s);
  BeginKernel();
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    if (warp == 3) {
      PassTurnsOn(s);
    } else if (IsElected()) {
      if (warp == 0)
        CopyTiles(s, a, maps);
      else
        AwaitTurns(s, a, warp - 1);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    Multiplier<kDepth>(s, a).Run();
  }
#endif  // of other architectures nobody launches it
}

template <int kDepth>
void LaunchDepth(const TurnsArgs& args, const Launch& launch) {
  const AttentionSizes& sizes = args.of.sizes;
  const auto map = [&](const AttentionHeads& x, int heads, int rows) {
    // The stride of a dimension of one is never used, but the driver looks at it.
    const int64_t width = int64_t{heads} * kDepth,
                  row_stride = sizes.length > 1 ? x.row_stride : width,
                  batch_stride = sizes.batch > 1 ? x.batch_stride : sizes.length * row_stride;
    return MapOfBF16(x.data, {width, sizes.length, sizes.batch}, {row_stride, batch_stride}, rows);
  };
  const TurnsMaps maps = {
      map(args.of.q, sizes.heads, kStepQueries), map(args.of.k, sizes.kv_heads, kUnitKeys),
      map(args.of.v, sizes.kv_heads, kUnitKeys), map(args.of.d_out, sizes.heads, kStepQueries)};
  const int64_t tiles = sizes.batch * sizes.heads * args.tiles;
  LaunchKernel(launch, static_cast<unsigned>(tiles), kStepQueries * kDepth / kPack, 0,
               RowsKernel<kDepth>, args);
  using Shared = TurnsShared<kDepth>;
  static_assert(sizeof(Shared) <= 227 << 10);
  MR_CUDA(cudaFuncSetAttribute(TurnsKernel<kDepth>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(Shared)));
  const int units = args.pairs * args.key_tiles;
  LaunchKernel(launch, static_cast<unsigned>(std::min(units, launch.sms)), kTurnsThreads,
               sizeof(Shared), TurnsKernel<kDepth>, maps, args);
}

TurnsArgs ArgsOf(const AttentionGradArgs& of) {
  const AttentionSizes& sizes = of.sizes;
  TurnsArgs a{.of = of};
  a.tiles = static_cast<int>(CeilDiv(sizes.length, kStepQueries));
  a.key_tiles = static_cast<int>(CeilDiv(sizes.length, kUnitKeys));
  a.pairs = static_cast<int>(sizes.batch * sizes.kv_heads);
  // As many as keep sums in the cache, but enough that their units seldom wait.
  constexpr int64_t kCached = 24 << 20, kLeast = 8;
  const int64_t bytes = int64_t{sizes.heads / sizes.kv_heads} * sizes.length * sizes.depth * 4,
                sets = CeilDiv(int64_t{a.pairs}, std::max(kCached / bytes, kLeast));
  a.at_once = static_cast<int>(CeilDiv(int64_t{a.pairs}, sets));
  return a;
}

}  // namespace

void LaunchInTurnAttentionGrad(const AttentionGradArgs& of, const InTurnScratch& scratch,
                               std::byte* memory, const Launch& launch) {
  TurnsArgs args = ArgsOf(of);
  args.sums = reinterpret_cast<float*>(memory);
  args.rows = reinterpret_cast<StepRows*>(memory + scratch.rows);
  args.turns = reinterpret_cast<unsigned*>(memory + scratch.turns);
  args.ticket = reinterpret_cast<unsigned*>(memory + scratch.ticket);
  of.sizes.depth == 64 ? LaunchDepth<64>(args, launch) : LaunchDepth<128>(args, launch);
}

bool HasInTurn(int major, int minor) {
#ifdef MILLRACE_SM_90A
  return major == 9 && minor == 0;
#else
  return major < 0 && minor < 0;
#endif
}

}  // namespace millrace::cuda
