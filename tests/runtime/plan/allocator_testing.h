// Random items, and a second opinion on placements that tries every position and every 256 bytes.
// Small cases only.
#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "runtime/plan/pool/allocator.h"

namespace millrace {

inline int64_t Below(std::mt19937& random, int64_t n) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
}

inline Item MakeItem(std::string name, int64_t blocks, std::vector<Interval> intervals,
                     int32_t unit = -1, DType dtype = DType::kF32) {
  return {.name = std::move(name),
          .bytes = blocks * kArenaAlignment,
          .intervals = std::move(intervals),
          .unit = unit,
          .dtype = dtype};
}

// One to three intervals in about 20 positions; sizes that divide nothing, a few of them 0; several
// buckets per unit, some without one.
inline std::vector<Item> RandomItems(std::mt19937& random, int64_t count) {
  std::vector<Item> items;
  for (int64_t i = 0; i < count; ++i) {
    Item item{.name = "i" + std::to_string(i), .bytes = Below(random, 20) * 131, .intervals = {}};
    int64_t begin = Below(random, 12);
    for (int64_t k = 1 + Below(random, 3); k > 0; --k) {
      const int64_t end = begin + 1 + Below(random, 5);
      item.intervals.push_back({begin, end});
      begin = end + Below(random, 5);
    }
    item.unit = static_cast<int32_t>(Below(random, 1 + count / 2)) - 1;
    item.dtype = Below(random, 2) == 0 ? DType::kF32 : DType::kBF16;
    items.push_back(std::move(item));
  }
  return items;
}

inline bool LiveAt(const Item& item, int64_t position) {
  return std::any_of(item.intervals.begin(), item.intervals.end(),
                     [&](const Interval& i) { return i.begin <= position && position < i.end; });
}

inline int64_t LastPosition(const std::vector<Item>& items) {
  int64_t last = 0;
  for (const Item& item : items) last = std::max(last, item.intervals.back().end);
  return last;
}

inline int64_t Blocks(const Item& item) {
  return (item.bytes + kArenaAlignment - 1) / kArenaAlignment;
}

inline int64_t BruteLowerBound(const std::vector<Item>& items) {
  int64_t most = 0;
  for (int64_t position = 0; position < LastPosition(items); ++position) {
    int64_t blocks = 0;
    for (const Item& item : items)
      if (LiveAt(item, position)) blocks += Blocks(item);
    most = std::max(most, blocks * kArenaAlignment);
  }
  return most;
}

// At every position every block of the pool has at most one owner, and every live item owns all of
// its blocks inside the pool.
inline bool BruteIsValid(const std::vector<Item>& items, const Placement& placement) {
  for (int64_t position = 0; position < LastPosition(items); ++position) {
    std::map<int64_t, size_t> owner;
    for (size_t i = 0; i < items.size(); ++i)
      for (size_t k = 0; k < items[i].intervals.size(); ++k) {
        const Interval& interval = items[i].intervals[k];
        if (position < interval.begin || position >= interval.end) continue;
        const int64_t offset = placement.interval_offsets.empty()
                                   ? placement.offsets[i]
                                   : placement.interval_offsets[i][k];
        if (offset % kArenaAlignment != 0 || offset < 0 ||
            offset + items[i].bytes > placement.pool_bytes)
          return false;
        for (int64_t block = 0; block < Blocks(items[i]); ++block)
          if (!owner.emplace(offset / kArenaAlignment + block, i).second) return false;
      }
  }
  return true;
}

}  // namespace millrace
