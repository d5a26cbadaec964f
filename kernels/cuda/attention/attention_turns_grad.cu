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
#include <type_traits>

#include "kernels/cuda/attention/attention_lines.cuh"
#include "kernels/cuda/attention/attention_turns.cuh"
#include "kernels/cuda/attention/attention_turns.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/tensor_cores/exp2.cuh"
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
  if (thread == 0) a.turns[blockIdx.x] = 0;
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

__device__ __forceinline__ void WriteShared16(uint32_t at, const float* x) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
               :
               : "r"(at), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
}

// sums [64 of a unit's keys, 64 queries] = the keys' lines at x by those of y, transposed.
template <int kDepth>
__device__ __forceinline__ void MultiplyLines(float (&sums)[32], uint32_t x, uint32_t y) {
  const uint64_t a = TileDescriptor<Lines::kDepth>(x), b = TileDescriptor<Lines::kDepth>(y);
#pragma unroll
  for (int step = 0; step < kDepth / 16; ++step) {
    const int box = step / 4, along = step % 4 * static_cast<int>(kDepthStep<Lines::kDepth>);
    MultiplyTiles<64, Lines::kDepth, Lines::kDepth>(
        sums, a + (box * TurnsShared<kDepth>::kKeyBox / 16 + along),
        b + (box * TurnsShared<kDepth>::kQueryBox / 16 + along), step > 0);
  }
}

// sums [64 keys, D] += x^T y, x in registers, y of 64 queries.
template <int kDepth>
__device__ __forceinline__ void AddProducts(float (&sums)[kDepth / 2], const uint32_t (&x)[4][4],
                                            uint32_t y) {
#pragma unroll
  for (int step = 0; step < kStepQueries / 16; ++step)
    MultiplyRegisters<kDepth, Lines::kRows>(
        sums, x[step], TileDescriptor<Lines::kRows>(y) + step * kDepthStep<Lines::kRows>, true);
}

// A copy that the compiler does not know for one: what a product takes from registers may not be
// read while it is under way.
__device__ __forceinline__ void Copy(uint32_t (&to)[4][4], const uint32_t (&x)[4][4]) {
#pragma unroll
  for (int i = 0; i < 16; ++i)
    asm volatile("mov.b32 %0, %1;" : "=r"(to[i / 4][i % 4]) : "r"(x[i / 4][i % 4]));
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
    ForEachUnit<true>(s_, a_, [&](const Unit& unit) { Do(unit); });
  }

 private:
  // Of the lane's two queries of each eight of a step, read ahead of their use: reads of shared
  // memory wait behind those of products.
  struct RowValues {
    __device__ __forceinline__ void Read(const float (&of)[kStepQueries], int lane) {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        eights[j] = *reinterpret_cast<const float2*>(&of[8 * j + lane % 4 * 2]);
    }
    float2 eights[8];
  };

  __device__ __forceinline__ void Do(const Unit& unit) {
    auto& keys = s_.keys[keys_.stage];
    float d_k[kDepth / 2] = {}, d_v[kDepth / 2] = {}, x[32], d_p[32];
    RowValues lse;
    const auto begin = [&] { BeginStep(x, d_p, lse, keys); };
    WaitFor(SharedAddress(&s_.keys_full[keys_.stage]), keys_.parity);
    const int heads = a_.of.sizes.heads / a_.of.sizes.kv_heads;
    int steps = UnitSteps(a_, unit).count();  // to come
    bool formed = false;                      // whether the step before has d_q to form here
    const auto do_step = [&](auto more) {
      constexpr bool kBeginNext = kAhead && decltype(more)::value;
      const auto& stage = s_.stages[stages_.stage];
      const StepRows& rows = s_.rows[stages_.stage];
      const uint32_t stage_empty = SharedAddress(&s_.stage_empty[stages_.stage]);
      if constexpr (!kAhead) {
        begin();
        WaitForProducts<1>();
      }
      Exponentials(x, lse);
      // By how many tiles these keys come behind the queries.
      const int behind = steps <= heads ? group_ : steps <= 2 * heads ? group_ - 1 : -1;
      if (behind >= 0) Mask(x, behind * kStepQueries);
      uint32_t p[4][4], d_s[4][4], stored[4][4];
      Pack(p, x);
      FenceSums();
      AddProducts<kDepth>(d_v, p, SharedAddress(stage.d_out));
      CommitProducts();
      RowValues delta;
      delta.Read(rows.delta, lane_);
      if constexpr (!kAhead) WaitForProducts<1>();
      Gradients(x, d_p, delta);
      if (behind >= 0) Mask(d_p, behind * kStepQueries);
      Pack(d_s, d_p);
      Copy(stored, d_s);
      const auto add_keys = [&] {
        FenceSums();
        AddProducts<kDepth>(d_k, d_s, SharedAddress(stage.queries));
        CommitProducts();
        stages_.Next(Shared::kStages);
        if constexpr (kBeginNext) begin();
        StoreScores(stored);
      };
      // Nothing is under way from one step to the next: the compiler does not follow it there.
      const auto end = [&] {
        WaitForProducts<kBeginNext ? 2 : 0>();
        __syncwarp();  // its lanes have read rows
        if (lane_ == 0) Arrive(stage_empty);
        if constexpr (kBeginNext) WaitForProducts<0>();
      };
      if (formed) {
        // d_k's product is under way while these columns leave.
        float d_q[kColumns / 2];
        FormQueries(d_q, keys);
        add_keys();
        WaitForProducts<kBeginNext ? 3 : 1>();
        AddQueries(unit, steps, d_q);
        end();
      } else {
        add_keys();
        end();
      }
      formed = Forms<kDepth>(group_, step_++);
    };
    if constexpr (kAhead) {
      begin();
      WaitForProducts<0>();
    }
#pragma unroll 1
    for (; steps > (kAhead ? 1 : 0); --steps) do_step(std::true_type());
    if constexpr (kAhead) do_step(std::false_type());
    if (formed) {
      float d_q[kColumns / 2];
      FormQueries(d_q, keys);
      WaitForProducts<0>();
      AddQueries(unit, 0, d_q);
    }
    StoreUnit(unit, keys, d_k, d_v);
  }

  // Begins the scores of the step in stages_, x, and d_p, and reads its lse ahead of them.
  template <class Keys>
  __device__ __forceinline__ void BeginStep(float (&x)[32], float (&d_p)[32], RowValues& lse,
                                            const Keys& keys) const {
    WaitFor(SharedAddress(&s_.stage_full[stages_.stage]), stages_.parity);
    const auto& stage = s_.stages[stages_.stage];
    lse.Read(s_.rows[stages_.stage].lse, lane_);
    FenceSums();
    MultiplyLines<kDepth>(x, SharedAddress(keys.keys) + group_ * kBoxBytes,
                          SharedAddress(stage.queries));
    CommitProducts();
    MultiplyLines<kDepth>(d_p, SharedAddress(keys.values) + group_ * kBoxBytes,
                          SharedAddress(stage.d_out));
    CommitProducts();
  }

  // And gives its keys back. Its warp's own lines of values, which nobody reads any more, are room
  // for results.
  template <class Keys>
  __device__ __forceinline__ void StoreUnit(const Unit& unit, const Keys& keys,
                                            const float (&d_k)[kDepth / 2],
                                            const float (&d_v)[kDepth / 2]) {
    WarpgroupBarrier(group_ + 1);
    const int line = group_ * 64 + warp_ * 16;
    const auto store = [&](const AttentionHeads& to, const float(&x)[kDepth / 2], float factor) {
      StagedRows<kDepth>(SharedAddress(keys.values), Shared::kKeyBox, line, x, factor)
          .Store(to, unit.batch, unit.kv_head, unit.key_tile * kUnitKeys + line,
                 a_.of.sizes.length);
    };
    store(a_.of.d_v, d_v, 1.0f);
    store(a_.of.d_k, d_k, a_.of.scale);
    FenceSharedWrites();
    __syncwarp();
    if (lane_ == 0) Arrive(SharedAddress(&s_.keys_empty[keys_.stage]));
    keys_.Next(Shared::kKeys);
  }

  // Scores become p.
  __device__ __forceinline__ void Exponentials(float (&x)[32], const RowValues& lse) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 of = lse.eights[j];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        x[4 * j + i] = Exp2(fmaf(x[4 * j + i], scale_, i % 2 == 0 ? -of.x : -of.y));
    }
  }
  // d_p becomes d_s.
  __device__ __forceinline__ void Gradients(const float (&p)[32], float (&d_p)[32],
                                            const RowValues& delta) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 of = delta.eights[j];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        d_p[4 * j + i] = p[4 * j + i] * (d_p[4 * j + i] - (i % 2 == 0 ? of.x : of.y));
    }
  }
  // Zeros where the key comes behind the query, of keys so far behind the queries.
  __device__ __forceinline__ void Mask(float (&x)[32], int behind) const {
    const int key = behind + warp_ * 16 + lane_ / 4, query = lane_ % 4 * 2;
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (key + i / 2 * 8 > query + 8 * j + i % 2) x[4 * j + i] = 0;
  }
  // Those of step_, where whoever forms its d_q finds them.
  __device__ __forceinline__ void StoreScores(const uint32_t (&d_s)[4][4]) {
    const int buffer = static_cast<int>(step_ % 2), key = group_ * 64 + warp_ * 16;
    const uint32_t tile = SharedAddress(s_.d_scores[buffer]);
    WaitFor(SharedAddress(&s_.scores_empty[buffer]), (step_ / 2 + 1) % 2);
#pragma unroll
    for (int step = 0; step < 4; ++step) StoreMatrices(MatrixAt(tile, key, step), d_s[step]);
    __syncwarp();
    if (lane_ == 0) Arrive(SharedAddress(&s_.scores_full[buffer]));
  }

  // Begins these columns of d_q / scale of the step before, [64 queries, 64].
  template <class Keys>
  __device__ __forceinline__ void FormQueries(float (&sums)[kColumns / 2], const Keys& keys) {
    const unsigned before = step_ - 1;
    const int buffer = static_cast<int>(before % 2);
    WaitFor(SharedAddress(&s_.scores_full[buffer]), before / 2 % 2);
    FenceSharedWrites();
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

  // Has them added, of the step that `later` of its unit come behind; the last unit has it all.
  __device__ __forceinline__ void AddQueries(const Unit& unit, int later,
                                             float (&x)[kColumns / 2]) {
    if (lane_ == 0) Arrive(SharedAddress(&s_.scores_empty[(step_ - 1) % 2]));
    const int heads = a_.of.sizes.heads / a_.of.sizes.kv_heads;
    if (later >= 2 * heads) return StoreSums(x);
    const int tile = 2 * unit.key_tile + later / heads,
              head = (unit.kv_head + 1) * heads - 1 - later % heads;
    while (ReadShared(&s_.allowed) < step_) continue;
    if (unit.key_tile > 0) AddOthers((unit.batch * a_.of.sizes.heads + head) * a_.tiles + tile, x);
    StoreQueries(unit.batch, head, tile, x);
    __syncwarp();
  }
  // Where a thread adds them.
  __device__ __forceinline__ void StoreSums(const float (&x)[kColumns / 2]) {
    WaitFor(SharedAddress(&s_.sums_empty[group_]), sums_parity_ ^ 1);
    sums_parity_ ^= 1;
    const uint32_t sums = SharedAddress(s_.sums[group_]) + thread_ * 16;
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      WriteShared16(sums + i * kPieceFloats * static_cast<int>(sizeof(float)), &x[4 * i]);
    __syncwarp();
    if (lane_ == 0) Arrive(SharedAddress(&s_.sums_full[group_]));
  }
  __device__ __forceinline__ void AddOthers(int at, float (&x)[kColumns / 2]) const {
    const float* const sums = SumsAt<kDepth>(a_, at, group_) + thread_ * 4;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const float4 others = __ldcg(reinterpret_cast<const float4*>(sums + i * kPieceFloats));
      x[4 * i] += others.x, x[4 * i + 1] += others.y;
      x[4 * i + 2] += others.z, x[4 * i + 3] += others.w;
    }
  }
  __device__ __forceinline__ void StoreQueries(int64_t batch, int head, int tile,
                                               const float (&x)[kColumns / 2]) const {
    const AttentionHeads& to = a_.of.d_q;
    const int column = (kDepth > kColumns ? group_ * kColumns : 0) + lane_ % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile * kStepQueries + warp_ * 16 + half * 8 + lane_ / 4;
      if (row >= a_.of.sizes.length) continue;
      uint16_t* const out = reinterpret_cast<uint16_t*>(to.data) + batch * to.batch_stride +
                            row * to.row_stride + head * to.head_stride + column;
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j)
        *reinterpret_cast<uint32_t*>(out + 8 * j) =
            PairOfBF16(x[4 * j + 2 * half] * a_.of.scale, x[4 * j + 2 * half + 1] * a_.of.scale);
    }
  }
  // Whether a step's first products begin in the step before, for which there are registers.
  static constexpr bool kAhead = kDepth == kColumns;
  // Of sums: four floats of each lane.
  static constexpr int kPieces = kColumns / 8, kPieceFloats = kWarpgroup * 4;
  Shared& s_;
  const TurnsArgs& a_;
  const int group_, thread_, warp_, lane_;
  const float scale_;
  unsigned step_ = 0;  // since the block began
  uint32_t sums_parity_ = 0;
  StageRing keys_, stages_;
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
    if (IsElected()) {
      if (warp == 0)
        CopyTiles(s, a, maps);
      else if (warp == 1)
        AwaitTurns(s, a);
      else
        AddSums(s, a, warp - 2);
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
  const TurnsMaps maps = {MapOfHeads(args.of.q, sizes, sizes.heads, kStepQueries),
                          MapOfHeads(args.of.k, sizes, sizes.kv_heads, kUnitKeys),
                          MapOfHeads(args.of.v, sizes, sizes.kv_heads, kUnitKeys),
                          MapOfHeads(args.of.d_out, sizes, sizes.heads, kStepQueries)};
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
  constexpr int64_t kCached = 16 << 20, kLeast = 8;
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
