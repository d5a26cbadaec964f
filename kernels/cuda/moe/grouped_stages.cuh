// The side of grouped_wgmma.cuh that copies: stages in shared memory, and the thread that fills
// them with the operands of tiles.
#pragma once

#include "kernels/cuda/moe/grouped_order.cuh"
#include "kernels/cuda/tensor_cores/mma.cuh"
#include "kernels/cuda/tensor_cores/tma.cuh"
#include "kernels/cuda/tensor_cores/wgmma.cuh"

namespace millrace::cuda {

// How a grouped product is cut: kGroups warpgroups multiply. kOne: of one expert, without offsets.
template <Slots kSlots, Lines kA, Lines kB, int kGroups_, int kTileN_, int kStages_,
          bool kOne_ = false>
struct WgmmaShape {
  static constexpr bool kOne = kOne_;
  static constexpr Slots slots = kSlots;
  static constexpr Lines a = kA, b = kB;
  static constexpr int kGroups = kGroups_, kTileN = kTileN_, kStages = kStages_;
  static constexpr int kTileM = kBoxRows * kGroups, kThreads = kWarpgroup * (kGroups + 1);
  // Columns along the depth come in one box, columns across in boxes of 64.
  static constexpr int kBoxesB = kB == Lines::kDepth ? 1 : (kTileN + kBoxRows - 1) / kBoxRows;
  static constexpr int kBytesA = kGroups * kBoxBytes,
                       kBytesB = kB == Lines::kDepth ? kTileN * 2 * kBoxDepth : kBoxesB * kBoxBytes;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static_assert(kStageBytes % 1024 == 0);
  // Registers of a thread that copies, and of one that multiplies.
  static constexpr int kFewRegisters = kGroups == 2 ? 40 : 32,
                       kManyRegisters = kGroups == 2 ? 232 : 160;
};

template <class T>
struct WgmmaShared {
  std::byte stages[T::kStages][T::kStageBytes];
  uint64_t full[T::kStages], empty[T::kStages], cleared;
  StagedTile tiles[T::kStages];
  OrderedTiles list;
};

// Tile number `tile`: bands of rows of tiles, within a band down its rows, then to the right: tiles
// that run at once share rows of a and columns of b.
template <class T>
__device__ StagedTile PlaceOf(const GroupedArgs& g, const OrderedTiles& list, int tile) {
  const int at = list.IndexOf(g.experts, tile), expert = list.order[at];
  StagedTile t;
  t.expert = expert;
  t.first_slot = SlotsAhead<T::kOne>(g, expert);
  const int slots = SlotsAhead<T::kOne>(g, expert + 1) - t.first_slot;
  const int rows = TileRows<T::slots, T::kTileM>(g, slots),
            columns = (g.n + T::kTileN - 1) / T::kTileN, within = tile - list.begin[at];
  constexpr int kBand = 16;
  const int band = within / (kBand * columns), in_band = within - band * kBand * columns,
            height = min(kBand, rows - band * kBand);
  t.m0 = (band * kBand + in_band % height) * T::kTileM;
  t.n0 = in_band / height * T::kTileN;
  t.rows = (T::slots == Slots::kRows ? slots : g.m) - t.m0;
  t.depth = T::slots == Slots::kRows ? g.k : slots;
  return t;
}

template <class T>
class Copier {
 public:
  __device__ Copier(WgmmaShared<T>& shared, const CUtensorMap& a, const CUtensorMap& b)
      : s_(shared), a_(a), b_(b) {}

  __device__ __forceinline__ void Tile(const GroupedArgs& g, const StagedTile& t) {
    const int boxes_a = min(T::kGroups, (t.rows + kBoxRows - 1) / kBoxRows);
    const int boxes_b =
        T::b == Lines::kDepth ? 1 : min(T::kBoxesB, (g.n - t.n0 + kBoxRows - 1) / kBoxRows);
    const uint32_t bytes = static_cast<uint32_t>(
        boxes_a * kBoxBytes + (T::b == Lines::kDepth ? T::kBytesB : boxes_b * kBoxBytes));
    Begin(t);
    for (int k = 0; k < t.depth; k += kBoxDepth) {
      if (k > 0) WaitFor(SharedAddress(&s_.empty[ring_.stage]), ring_.parity ^ 1);
      const uint32_t full = SharedAddress(&s_.full[ring_.stage]),
                     to = SharedAddress(s_.stages[ring_.stage]);
      ArriveAndExpect(full, bytes);
      for (int i = 0; i < boxes_a; ++i) {
        const int row = t.m0 + i * kBoxRows;
        if constexpr (T::a == Lines::kDepth)
          CopyBox(to + i * kBoxBytes, a_, full, k, t.first_slot + row, 0);
        else
          CopyBox(to + i * kBoxBytes, a_, full, row, t.first_slot + k, 0);
      }
      for (int i = 0; i < boxes_b; ++i) {
        const int column = t.n0 + i * kBoxRows;
        const uint32_t at = to + T::kBytesA + i * kBoxBytes;
        if constexpr (T::slots == Slots::kDepth)
          CopyBox(at, b_, full, column, t.first_slot + k, 0);
        else if constexpr (T::b == Lines::kDepth)
          CopyBox(at, b_, full, k, column, t.expert);
        else
          CopyBox(at, b_, full, column, k, t.expert);
      }
      ring_.Next(T::kStages);
    }
    if (t.depth == 0) Empty();
  }
  __device__ __forceinline__ void End() {
    Begin({.rows = -1});
    Empty();
  }

 private:
  __device__ __forceinline__ void Begin(const StagedTile& t) {
    WaitFor(SharedAddress(&s_.empty[ring_.stage]), ring_.parity ^ 1);
    s_.tiles[ring_.stage] = t;
  }
  __device__ __forceinline__ void Empty() {
    Arrive(SharedAddress(&s_.full[ring_.stage]));
    ring_.Next(T::kStages);
  }

  WgmmaShared<T>& s_;
  const CUtensorMap &a_, &b_;
  StageRing ring_;
};

}  // namespace millrace::cuda
