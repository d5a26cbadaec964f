// How the blocks of attention_turns_grad.cu share out a gradient, and those of their threads that
// do not multiply: they copy tiles, look for turns, add to d_q and pass turns on.
//
// Unit   128 keys of a key/value head; tiles of 64 queries that see any of them, from the last of
//        the sequence down to the keys' own, of each query head of the group: a step each.
// Order  Units of earlier keys have more steps and come first; those of `at_once` heads alternate,
//        and blocks take them in this order. So a unit begins a few steps behind the one before it
//        of its head and, as both walk over the same tiles, stays behind it.
// Turns  What units add to a tile's d_q comes in the order of their keys: a tile's word counts the
//        warpgroups that have added. The first unit writes; the last, of the tile's own keys, has
//        the sum, and is not counted. Units wait for earlier ones alone: they have begun, and end.
// Who    Of the two warpgroups that multiply, with D 128 each forms its 64 columns of every step's
//        d_q; with D 64 they take steps alternately. Each puts them where a thread has them added
//        by a copy, and goes on: that thread waits for turns and memory. Those that multiply do so
//        where their unit is a tile's last, or what they formed before still waits.
// Fences Of what is stored in shared memory for products and copies, by those that have it read: a
//        fence waits for the thread's own stores, and theirs are long past.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/attention/attention_lines.cuh"
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
  unsigned* turns = nullptr;  // [B, H, tiles]: warpgroups that have added
  unsigned* ticket = nullptr;
};

struct Unit {
  int batch, kv_head, key_tile;
};
__device__ __forceinline__ Unit UnitOf(const TurnsArgs& a, int unit) {
  const int of_set = a.at_once * a.key_tiles, set = unit / of_set, first = set * a.at_once,
            pairs = min(a.at_once, a.pairs - first), rest = unit - set * of_set,
            pair = first + rest % pairs;
  return {pair / a.of.sizes.kv_heads, pair % a.of.sizes.kv_heads, rest / pairs};
}

// The steps of a unit, one after the other.
class UnitSteps {
 public:
  __device__ __forceinline__ UnitSteps(const TurnsArgs& a, const Unit& unit)
      : tiles_(a.tiles),
        end_(2 * unit.key_tile - 1),
        group_(a.of.sizes.heads / a.of.sizes.kv_heads),
        first_head_(unit.kv_head * group_),
        first_at_((unit.batch * a.of.sizes.heads + first_head_) * a.tiles),
        tile_(a.tiles - 1),
        at_(first_at_ + tile_) {}
  __device__ __forceinline__ bool more() const { return tile_ > end_; }
  __device__ __forceinline__ int count() const { return (tile_ - end_) * group_; }
  __device__ __forceinline__ void Next() {
    at_ += tiles_;
    if (++head_ < group_) return;
    head_ = 0;
    --tile_;
    at_ = first_at_ + tile_;
  }
  __device__ __forceinline__ int head() const { return first_head_ + head_; }
  __device__ __forceinline__ int tile() const { return tile_; }
  // Whether this unit is the last that adds to the tile, which is its keys' own.
  __device__ __forceinline__ bool last() const { return tile_ <= end_ + 2; }
  // Of [B, H, tiles].
  __device__ __forceinline__ int at() const { return at_; }

 private:
  const int tiles_, end_, group_, first_head_, first_at_;
  int head_ = 0, tile_, at_;
};

// Whether warpgroup `group` forms columns of d_q in a block's step `step`.
template <int kDepth>
__device__ __forceinline__ bool Forms(int group, unsigned step) {
  static_assert(kDepth == kColumns || kDepth == kMultipliers * kColumns);
  return kDepth > kColumns || step % kMultipliers == static_cast<unsigned>(group);
}

// ---- shared memory

// The one that awaits turns, and those that add what a warpgroup has formed of d_q.
inline constexpr int kTurnThreads = 1 + kMultipliers;

template <int kDepth>
struct TurnsShared {
  static constexpr int kBoxes = kDepth / kBoxDepth, kUnits = 2, kKeys = kDepth == 64 ? 2 : 1,
                       kStages = kDepth == 64 ? 4 : 3;
  static constexpr int kKeyBox = kUnitKeys * kLineBytes, kQueryBox = kStepQueries * kLineBytes;
  // Warpgroups that form d_q of a step.
  static constexpr int kForming = kDepth / kColumns;
  struct Keys {
    std::byte keys[kBoxes][kKeyBox], values[kBoxes][kKeyBox];
  };
  struct Queries {
    std::byte queries[kBoxes][kQueryBox], d_out[kBoxes][kQueryBox];
  };
  Keys keys[kKeys];
  Queries stages[kStages];
  std::byte d_scores[2][kUnitKeys * kLineBytes];  // of a step: a line of 64 queries for each key
  float sums[kMultipliers][kStepQueries * kColumns];  // d_q / scale of a warpgroup's step
  StepRows rows[kStages];
  uint64_t unit_full[kUnits], unit_empty[kUnits], keys_full[kKeys], keys_empty[kKeys];
  uint64_t stage_full[kStages], stage_empty[kStages], scores_full[2], scores_empty[2];
  uint64_t sums_full[kMultipliers], sums_empty[kMultipliers];
  int unit[kUnits];  // -1: there are no more
  unsigned allowed;  // steps since the block began whose turns have come
};

// What warpgroup `group` adds to d_q of the tile at [B, H, tiles].
template <int kDepth>
__device__ __forceinline__ float* SumsAt(const TurnsArgs& a, int64_t at, int group) {
  constexpr int kForming = TurnsShared<kDepth>::kForming;
  return a.sums + (at * kForming + (kForming > 1 ? group : 0)) * (kStepQueries * kColumns);
}

// By one thread; then a barrier of the block.
template <int kDepth>
__device__ __forceinline__ void InitTurns(TurnsShared<kDepth>& s) {
  using Shared = TurnsShared<kDepth>;
  constexpr int kWarps = kMultipliers * kGroupWarps;
  for (int i = 0; i < Shared::kUnits; ++i) {
    InitBarrier(SharedAddress(&s.unit_full[i]), 1);
    InitBarrier(SharedAddress(&s.unit_empty[i]), kWarps + kTurnThreads);
  }
  for (int i = 0; i < Shared::kKeys; ++i) {
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
  for (int group = 0; group < kMultipliers; ++group) {
    InitBarrier(SharedAddress(&s.sums_full[group]), kGroupWarps);
    InitBarrier(SharedAddress(&s.sums_empty[group]), 1);
  }
  s.allowed = 0;
  FenceNewBarriers();
}

// f(unit) for every unit of the block; then it is given back by one thread, or by the first of a
// warp all of which call it.
template <bool kWarpWide, class Shared, class F>
__device__ __forceinline__ void ForEachUnit(Shared& s, const TurnsArgs& a, F&& f) {
  StageRing ring;
  for (;; ring.Next(Shared::kUnits)) {
    WaitFor(SharedAddress(&s.unit_full[ring.stage]), ring.parity);
    int unit = s.unit[ring.stage];
    if constexpr (kWarpWide) unit = Uniform(unit);
    if (unit < 0) return;
    f(UnitOf(a, unit));
    if constexpr (kWarpWide) {
      __syncwarp();
      if (threadIdx.x % kWarp != 0) continue;
    }
    Arrive(SharedAddress(&s.unit_empty[ring.stage]));
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
// Behind what the thread has done and seen.
__device__ __forceinline__ void CountGlobal(unsigned* word) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" : : "l"(word) : "memory");
}

// ---- tiles

struct TurnsMaps {
  CUtensorMap queries, keys, values, d_out;
};

// By one thread: takes units and has their tiles copied.
template <int kDepth>
__device__ __forceinline__ void CopyTiles(TurnsShared<kDepth>& s, const TurnsArgs& a,
                                          const TurnsMaps& maps) {
  using Shared = TurnsShared<kDepth>;
  StageRing units, keys, stages;
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
    WaitFor(SharedAddress(&s.keys_empty[keys.stage]), keys.parity ^ 1);
    const uint32_t keys_full = SharedAddress(&s.keys_full[keys.stage]);
    ArriveAndExpect(keys_full, sizeof(typename Shared::Keys));
    const int kv_column = unit.kv_head * kDepth;
#pragma unroll
    for (int box = 0; box < Shared::kBoxes; ++box) {
      CopyBox(SharedAddress(s.keys[keys.stage].keys[box]), maps.keys, keys_full,
              kv_column + box * kBoxDepth, unit.key_tile * kUnitKeys, unit.batch);
      CopyBox(SharedAddress(s.keys[keys.stage].values[box]), maps.values, keys_full,
              kv_column + box * kBoxDepth, unit.key_tile * kUnitKeys, unit.batch);
    }
    keys.Next(Shared::kKeys);
    for (UnitSteps step(a, unit); step.more(); step.Next()) {
      WaitFor(SharedAddress(&s.stage_empty[stages.stage]), stages.parity ^ 1);
      const uint32_t full = SharedAddress(&s.stage_full[stages.stage]);
      ArriveAndExpect(full, sizeof(typename Shared::Queries) + sizeof(StepRows));
#pragma unroll
      for (int box = 0; box < Shared::kBoxes; ++box) {
        const int column = step.head() * kDepth + box * kBoxDepth, row = step.tile() * kStepQueries;
        CopyBox(SharedAddress(s.stages[stages.stage].queries[box]), maps.queries, full, column, row,
                unit.batch);
        CopyBox(SharedAddress(s.stages[stages.stage].d_out[box]), maps.d_out, full, column, row,
                unit.batch);
      }
      CopyBytes(SharedAddress(&s.rows[stages.stage]), a.rows + step.at(), sizeof(StepRows), full);
      stages.Next(Shared::kStages);
    }
  }
}

// ---- turns

// By one thread: looks for turns, ahead of those that add.
template <int kDepth>
__device__ __forceinline__ void AwaitTurns(TurnsShared<kDepth>& s, const TurnsArgs& a) {
  unsigned allowed = 0;
  ForEachUnit<false>(s, a, [&](const Unit& unit) {
    const auto turn = static_cast<unsigned>(unit.key_tile * TurnsShared<kDepth>::kForming);
    for (UnitSteps step(a, unit); step.more(); step.Next()) {
      while (turn > 0 && ReadGlobal(a.turns + step.at()) < turn) __nanosleep(20);
      WriteShared(&s.allowed, ++allowed);
    }
  });
}

// By one thread: adds what warpgroup `group` has formed of d_q, in turn, but for last units.
template <int kDepth>
__device__ __forceinline__ void AddSums(TurnsShared<kDepth>& s, const TurnsArgs& a, int group) {
  using Shared = TurnsShared<kDepth>;
  const uint32_t sums = SharedAddress(s.sums[group]), full = SharedAddress(&s.sums_full[group]),
                 empty = SharedAddress(&s.sums_empty[group]);
  constexpr uint32_t kBytes = sizeof s.sums[0];
  unsigned steps = 0;
  uint32_t parity = 0;
  ForEachUnit<false>(s, a, [&](const Unit& unit) {
    for (UnitSteps step(a, unit); step.more(); step.Next()) {
      const bool forms = Forms<kDepth>(group, steps++);
      if (!forms || step.last()) continue;
      float* const to = SumsAt<kDepth>(a, step.at(), group);
      WaitFor(full, parity);
      parity ^= 1;
      FenceSharedWrites();
      while (ReadShared(&s.allowed) < steps) continue;
      FenceGlobalAccess();
      unit.key_tile == 0 ? StoreBytes(to, sums, kBytes) : AddFloats(to, sums, kBytes);
      CommitStores();
      WaitForReads();
      Arrive(empty);
      WaitForStores();
      FenceGlobalAccess();
      CountGlobal(a.turns + step.at());
    }
  });
}

}  // namespace millrace::cuda
