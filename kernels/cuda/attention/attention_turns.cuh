// How the blocks of attention_turns_grad.cu share out a gradient, and those of their threads that
// do not multiply: they copy tiles, look for turns and pass them on.
//
// Unit   128 keys of a key/value head; tiles of 64 queries that see any of them, from the last of
//        the sequence down to the keys' own, of each query head of the group: a step each.
// Order  Units of earlier keys have more steps and come first; those of `at_once` heads alternate,
//        and blocks take them in this order. So a unit begins a few steps behind the one before it
//        of its head and, as both walk over the same tiles, stays behind it.
// Turns  What units add to 64 columns of a tile's d_q comes in the order of their keys: the one of
//        keys [128 i, 128 i + 128) adds when the word of these is i, and sets it to i + 1. The
//        first one writes; the last, of the tile's own keys, has the sum. Units wait for earlier
//        ones alone, which have begun and so end.
// Who    Of the two warpgroups that multiply, with D 128 each forms its 64 columns of every step's
//        d_q; with D 64 they take steps alternately.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/tensor_cores/mma.cuh"
#include "kernels/cuda/tensor_cores/tma.cuh"
#include "kernels/cuda/tensor_cores/wgmma.cuh"

namespace millrace::cuda {

inline constexpr int kUnitKeys = 128, kStepQueries = 64, kColumns = 64;
inline constexpr int kGroupWarps = kWarpgroup / kWarp;
inline constexpr int kMultipliers = 2;  // warpgroups of a block, behind the one that does not
inline constexpr int kTurnsThreads = kWarpgroup * (1 + kMultipliers);

// Of a tile of queries; from T on inf, at which p is 0, and 0.
struct StepRows {
  float lse[kStepQueries], delta[kStepQueries];  // lse * log2(e)
};

struct TurnsArgs {
  AttentionGradArgs of;
  int tiles = 0, key_tiles = 0;  // of a sequence, of 64 queries and of 128 keys
  int pairs = 0, at_once = 0;    // B*Hkv; those whose units alternate
  // Scratch (InTurnScratch).
  float* sums = nullptr;      // d_q / scale [B, H, tiles, D/64, 64 * 64], as lanes have it
  StepRows* rows = nullptr;   // [B, H, tiles]
  unsigned* turns = nullptr;  // [B, H, tiles, D/64]
  unsigned* ticket = nullptr;
};

struct Unit {
  int64_t batch;
  int kv_head, key_tile;
};
__device__ __forceinline__ Unit UnitOf(const TurnsArgs& a, int unit) {
  const int of_set = a.at_once * a.key_tiles, set = unit / of_set, first = set * a.at_once,
            pairs = min(a.at_once, a.pairs - first), rest = unit - set * of_set,
            pair = first + rest % pairs;
  return {pair / a.of.sizes.kv_heads, pair % a.of.sizes.kv_heads, rest / pairs};
}

// f(head, tile) for every step of the unit.
template <class F>
__device__ __forceinline__ void ForEachStep(const TurnsArgs& a, const Unit& unit, F&& f) {
  const int group = a.of.sizes.heads / a.of.sizes.kv_heads, first = unit.kv_head * group;
#pragma unroll 1
  for (int tile = a.tiles - 1; tile >= 2 * unit.key_tile; --tile)
#pragma unroll 1
    for (int head = first; head < first + group; ++head) f(head, tile);
}

// Of [B, H, tiles].
__device__ __forceinline__ int64_t TileOf(const TurnsArgs& a, const Unit& unit, int head,
                                          int tile) {
  return (unit.batch * a.of.sizes.heads + head) * a.tiles + tile;
}

// Of [B, H, tiles, D/64]: the columns of the tile that warpgroup `group` forms in a block's step
// `step`; -1: none.
template <int kDepth>
__device__ __forceinline__ int64_t ColumnsOf(int64_t tile, int group, unsigned step) {
  static_assert(kDepth == kColumns || kDepth == kMultipliers * kColumns);
  if constexpr (kDepth > kColumns) return tile * kMultipliers + group;
  return step % kMultipliers == static_cast<unsigned>(group) ? tile : -1;
}

// ---- shared memory

// The words of a warpgroup: of what it adds to d_q, how often since the block began.
struct TurnWords {
  unsigned allowed;
  unsigned added[kGroupWarps];  // by each warp; kNoMore: and no further ones come
  unsigned passed_on;
};
inline constexpr unsigned kNoMore = 0x80000000u;
// What to tell the next unit; nullptr: there is none.
struct NextTurn {
  unsigned* word;
  unsigned turn;
};
inline constexpr int kNextTurns = 8;  // that may be added and not passed on yet

template <int kDepth>
struct TurnsShared {
  static constexpr int kBoxes = kDepth / kBoxDepth, kUnits = 2, kStages = kDepth == 64 ? 4 : 2;
  static constexpr int kKeyBox = kUnitKeys * kLineBytes, kQueryBox = kStepQueries * kLineBytes;
  // Warpgroups that form d_q of a step.
  static constexpr int kForming = kDepth / kColumns;
  struct Keys {
    std::byte keys[kBoxes][kKeyBox], values[kBoxes][kKeyBox];
  };
  struct Queries {
    std::byte queries[kBoxes][kQueryBox], d_out[kBoxes][kQueryBox];
  };
  Keys keys[kUnits];
  Queries stages[kStages];
  std::byte d_scores[2][kUnitKeys * kLineBytes];  // of a step: a line of 64 queries for each key
  StepRows rows[kStages];
  uint64_t unit_full[kUnits], unit_empty[kUnits], keys_full[kUnits], keys_empty[kUnits];
  uint64_t stage_full[kStages], stage_empty[kStages], scores_full[2], scores_empty[2];
  int unit[kUnits];  // -1: there are no more
  TurnWords turns[kMultipliers];
  NextTurn next[kMultipliers][kNextTurns];
};

// By one thread; then a barrier of the block.
template <int kDepth>
__device__ __forceinline__ void InitTurns(TurnsShared<kDepth>& s) {
  using Shared = TurnsShared<kDepth>;
  constexpr int kWarps = kMultipliers * kGroupWarps;
  for (int i = 0; i < Shared::kUnits; ++i) {
    InitBarrier(SharedAddress(&s.unit_full[i]), 1);
    InitBarrier(SharedAddress(&s.unit_empty[i]), kWarps + kMultipliers);
    InitBarrier(SharedAddress(&s.keys_full[i]), 1);
    InitBarrier(SharedAddress(&s.keys_empty[i]), kWarps);
  }
  for (int i = 0; i < Shared::kStages; ++i) {
    InitBarrier(SharedAddress(&s.stage_full[i]), 1);
    InitBarrier(SharedAddress(&s.stage_empty[i]), kWarps);
  }
  for (int i = 0; i < 2; ++i) {
    InitBarrier(SharedAddress(&s.scores_full[i]), kWarps);
    InitBarrier(SharedAddress(&s.scores_empty[i]), Shared::kForming * kGroupWarps);
  }
  for (TurnWords& words : s.turns) words = {};
  FenceNewBarriers();
}

// The same in all lanes, and known to be so: what follows from it is formed once for a warp.
__device__ __forceinline__ int Uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

// f(unit, ring) for every unit of the block; then the thread gives it back, if it `gives`.
// kWarpWide: all lanes of a warp call it.
template <bool kWarpWide, class Shared, class F>
__device__ __forceinline__ void ForEachUnit(Shared& s, const TurnsArgs& a, bool gives, F&& f) {
  StageRing ring;
  for (;; ring.Next(Shared::kUnits)) {
    WaitFor(SharedAddress(&s.unit_full[ring.stage]), ring.parity);
    int unit = s.unit[ring.stage];
    if constexpr (kWarpWide) unit = Uniform(unit);
    if (unit < 0) return;
    f(UnitOf(a, unit), ring);
    if (gives) Arrive(SharedAddress(&s.unit_empty[ring.stage]));
  }
}

// ---- words

__device__ __forceinline__ unsigned ReadShared(const unsigned* word) {
  unsigned value;
  asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];"
               : "=r"(value)
               : "r"(SharedAddress(word))
               : "memory");
  return value;
}
__device__ __forceinline__ void WriteShared(unsigned* word, unsigned value) {
  asm volatile("st.release.cta.shared::cta.u32 [%0], %1;"
               :
               : "r"(SharedAddress(word)), "r"(value)
               : "memory");
}
__device__ __forceinline__ unsigned ReadGlobal(const unsigned* word) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
// Behind a fence.
__device__ __forceinline__ void WriteGlobal(unsigned* word, unsigned value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" : : "l"(word), "r"(value) : "memory");
}

// ---- copies

struct TurnsMaps {
  CUtensorMap queries, keys, values, d_out;
};

__device__ __forceinline__ void CopyBytes(uint32_t shared, const void* from, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      :
      : "r"(shared), "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// By one thread: takes units and has their tiles copied.
template <int kDepth>
__device__ __forceinline__ void CopyTiles(TurnsShared<kDepth>& s, const TurnsArgs& a,
                                          const TurnsMaps& maps) {
  using Shared = TurnsShared<kDepth>;
  StageRing units, stages;
  const int total = a.pairs * a.key_tiles;
  for (;; units.Next(Shared::kUnits)) {
    // Now that all of the unit before is copied, no sooner: one that is taken long before it is
    // begun keeps those behind it waiting.
    const int next = static_cast<int>(atomicAdd(a.ticket, 1u));
    WaitFor(SharedAddress(&s.unit_empty[units.stage]), units.parity ^ 1);
    s.unit[units.stage] = next < total ? next : -1;
    Arrive(SharedAddress(&s.unit_full[units.stage]));
    if (next >= total) return;
    const Unit unit = UnitOf(a, next);
    WaitFor(SharedAddress(&s.keys_empty[units.stage]), units.parity ^ 1);
    const uint32_t keys_full = SharedAddress(&s.keys_full[units.stage]);
    ArriveAndExpect(keys_full, sizeof(typename Shared::Keys));
    const int batch = static_cast<int>(unit.batch), kv_column = unit.kv_head * kDepth;
#pragma unroll
    for (int box = 0; box < Shared::kBoxes; ++box) {
      CopyBox(SharedAddress(s.keys[units.stage].keys[box]), maps.keys, keys_full,
              kv_column + box * kBoxDepth, unit.key_tile * kUnitKeys, batch);
      CopyBox(SharedAddress(s.keys[units.stage].values[box]), maps.values, keys_full,
              kv_column + box * kBoxDepth, unit.key_tile * kUnitKeys, batch);
    }
    ForEachStep(a, unit, [&](int head, int tile) {
      WaitFor(SharedAddress(&s.stage_empty[stages.stage]), stages.parity ^ 1);
      const uint32_t full = SharedAddress(&s.stage_full[stages.stage]);
      ArriveAndExpect(full, sizeof(typename Shared::Queries) + sizeof(StepRows));
#pragma unroll
      for (int box = 0; box < Shared::kBoxes; ++box) {
        CopyBox(SharedAddress(s.stages[stages.stage].queries[box]), maps.queries, full,
                head * kDepth + box * kBoxDepth, tile * kStepQueries, batch);
        CopyBox(SharedAddress(s.stages[stages.stage].d_out[box]), maps.d_out, full,
                head * kDepth + box * kBoxDepth, tile * kStepQueries, batch);
      }
      CopyBytes(SharedAddress(&s.rows[stages.stage]), a.rows + TileOf(a, unit, head, tile),
                sizeof(StepRows), full);
      stages.Next(Shared::kStages);
    });
  }
}

// ---- turns

// By one thread: looks for the turns of warpgroup `group`, ahead of it.
template <int kDepth>
__device__ __forceinline__ void AwaitTurns(TurnsShared<kDepth>& s, const TurnsArgs& a, int group) {
  unsigned step = 0, allowed = 0;
  ForEachUnit<false>(s, a, true, [&](const Unit& unit, const auto&) {
    const auto turn = static_cast<unsigned>(unit.key_tile);
    ForEachStep(a, unit, [&](int head, int tile) {
      const int64_t at = ColumnsOf<kDepth>(TileOf(a, unit, head, tile), group, step++);
      if (at < 0) return;
      while (turn > 0 && ReadGlobal(a.turns + at) < turn) __nanosleep(20);
      WriteShared(&s.turns[group].allowed, ++allowed);
    });
  });
}

// By a warp, four lanes to a warpgroup, of which the first passes its turns on: a fence is long,
// and those that multiply have no time for it.
template <class Shared>
__device__ __forceinline__ void PassTurnsOn(Shared& s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, group = lane / kGroupWarps % kMultipliers;
  const bool passes = lane < kGroupWarps * kMultipliers && lane % kGroupWarps == 0;
  TurnWords& words = s.turns[group];
  unsigned passed = 0;
  for (bool over = false; !over;) {
    unsigned added = ReadShared(&words.added[lane % kGroupWarps]);
    added = min(added, __shfl_xor_sync(0xffffffffu, added, 1));
    added = min(added, __shfl_xor_sync(0xffffffffu, added, 2));
    __syncwarp();
    const unsigned count = added & ~kNoMore;
    if (count == passed) {
      __nanosleep(40);
    } else if (passes) {
      asm volatile("fence.acq_rel.gpu;" : : : "memory");
      for (unsigned i = passed; i < count; ++i) {
        const NextTurn& next = s.next[group][i % kNextTurns];
        if (next.word != nullptr) WriteGlobal(next.word, next.turn);
      }
      WriteShared(&words.passed_on, count);
    }
    passed = count;
    over = __all_sync(0xffffffffu, (added & kNoMore) != 0);
  }
}

}  // namespace millrace::cuda
