// Which bytes are taken when, for many items; not for others than the allocators.
//
// A binary tree over positions. An item's live range is the union of few of its nodes (two per
// level at most); a node knows the bytes taken throughout its range, and those taken anywhere in
// it. To ask what is free during a range costs the nodes on the way to it, not the items live then:
// a step of a thousand layers has thousands of them live at once, but their bytes touch, and are
// one run.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "runtime/plan/pool/allocator.h"

namespace millrace::internal {

// Disjoint runs of bytes; runs that touch are one.
class ByteRuns {
 public:
  void Add(int64_t begin, int64_t end);
  // The lowest offset from `bottom` on with `bytes` free bytes.
  int64_t LowestFrom(int64_t bottom, int64_t bytes) const;
  size_t size() const { return runs_.size(); }
  auto begin() const { return runs_.begin(); }
  auto end() const { return runs_.end(); }

 private:
  std::vector<std::pair<int64_t, int64_t>> runs_;  // ascending
};

// The positions of items' live ranges, numbered: between two cuts nothing begins or ends.
class ItemCuts {
 public:
  explicit ItemCuts(const std::vector<Item>& items);

  int32_t count() const { return count_; }
  // Cuts [begin, end) of each of the item's intervals.
  std::span<const std::pair<int32_t, int32_t>> of(int32_t item) const {
    const auto i = static_cast<size_t>(item);
    return std::span(ranges_).subspan(first_[i], first_[i + 1] - first_[i]);
  }

 private:
  int32_t count_ = 0;
  std::vector<size_t> first_;  // by item, into ranges_
  std::vector<std::pair<int32_t, int32_t>> ranges_;
};

class Occupancy {
 public:
  // For items of `items` only, named by their index.
  Occupancy(const std::vector<Item>& items, const ItemCuts& cuts);

  // The lowest offset at which the item meets nothing that has been placed.
  int64_t LowestFor(int32_t item) const;
  // The same in the narrowest gap that holds the item, the lowest of them; a gap that is open above
  // counts as one that ends at `cap`, and is the last resort where that is too low.
  int64_t TightestFor(int32_t item, int64_t cap) const;
  void Place(int32_t item, int64_t offset);
  void Clear();  // nothing is placed

  // Byte runs looked at so far: the work, in a unit that no machine changes.
  int64_t looked_at() const { return looked_at_; }

 private:
  struct Node {
    ByteRuns throughout, anywhere;
    mutable int64_t visit = 0;  // the last that came by
  };
  // Lists that together have the bytes taken at any time during the item's life. Until the next
  // call.
  const std::vector<const ByteRuns*>& TakenDuring(int32_t item) const;
  // on_way(node) for every node from the range's ends to the root, once per visit; within(node) for
  // the nodes that the range is the union of.
  template <class OnWay, class Within>
  void Visit(std::pair<int32_t, int32_t> range, OnWay&& on_way, Within&& within) const;

  const ItemCuts& cuts_;
  std::vector<int64_t> bytes_;  // by item
  size_t leaves_ = 1;           // a power of two
  std::vector<Node> nodes_;     // 1 is the root; leaf i is leaves_ + i: between cuts i and i + 1
  mutable int64_t looked_at_ = 0, visit_ = 0;
  mutable std::vector<const ByteRuns*> taken_;  // of TakenDuring
};

}  // namespace millrace::internal
