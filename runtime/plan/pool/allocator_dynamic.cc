// A best-fit caching allocator, replayed over the timeline: what a framework that allocates at run
// time would reserve.
//
// Model of PyTorch's CUDACachingAllocator without its size classes and rounding beyond the arena's
// alignment: a request takes the smallest cached block that holds it and splits off the rest; with
// none, a new segment of exactly that size is reserved. A freed block merges with free neighbours
// of its own segment. Segments are never returned.
#include <fmt/core.h>

#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "runtime/plan/pool/allocator_internal.h"

namespace millrace::internal {
namespace {

class CachingAllocator {
 public:
  int64_t Allocate(int64_t bytes) {
    const auto fit = free_.lower_bound({bytes, 0});  // smallest that fits, lowest address first
    if (fit == free_.end()) {
      const int64_t offset = reserved_bytes_;
      reserved_bytes_ += bytes;
      blocks_[offset] = {.bytes = bytes, .segment = ++segments_, .free = false};
      return offset;
    }
    const int64_t offset = fit->second;
    free_.erase(fit);
    Block& block = blocks_.at(offset);
    block.free = false;
    if (const int64_t rest = block.bytes - bytes; rest > 0) {
      block.bytes = bytes;
      blocks_[offset + bytes] = {.bytes = rest, .segment = block.segment, .free = true};
      free_.insert({rest, offset + bytes});
    }
    return offset;
  }

  void Free(int64_t offset) {
    auto block = blocks_.find(offset);
    block->second.free = true;
    if (const auto next = std::next(block);
        next != blocks_.end() && Mergeable(block->second, next->second)) {
      free_.erase({next->second.bytes, next->first});
      block->second.bytes += next->second.bytes;
      blocks_.erase(next);
    }
    if (block != blocks_.begin()) {
      const auto previous = std::prev(block);
      if (Mergeable(previous->second, block->second)) {
        free_.erase({previous->second.bytes, previous->first});
        previous->second.bytes += block->second.bytes;
        blocks_.erase(block);
        block = previous;
      }
    }
    free_.insert({block->second.bytes, block->first});
  }

  int64_t reserved_bytes() const { return reserved_bytes_; }
  int segments() const { return segments_; }

 private:
  struct Block {
    int64_t bytes;
    int segment;
    bool free;
  };
  static bool Mergeable(const Block& a, const Block& b) {
    return a.free && b.free && a.segment == b.segment;
  }

  std::map<int64_t, Block> blocks_;             // all of the reserved bytes, by offset
  std::set<std::pair<int64_t, int64_t>> free_;  // (bytes, offset)
  int64_t reserved_bytes_ = 0;
  int segments_ = 0;
};

}  // namespace

Placement PlaceDynamic(const std::vector<Item>& items) {
  Placement placement;
  for (const Item& item : items) placement.interval_offsets.emplace_back(item.intervals.size(), 0);
  CachingAllocator allocator;
  for (const LifetimeEvent& event : LifetimeEvents(items)) {
    const int64_t bytes = PaddedBytes(items[static_cast<size_t>(event.item)]);
    if (bytes == 0) continue;
    int64_t& offset =
        placement
            .interval_offsets[static_cast<size_t>(event.item)][static_cast<size_t>(event.interval)];
    if (event.begin) {
      offset = allocator.Allocate(bytes);
    } else {
      allocator.Free(offset);
    }
  }
  for (const std::vector<int64_t>& offsets : placement.interval_offsets)
    placement.offsets.push_back(offsets[0]);
  placement.pool_bytes = allocator.reserved_bytes();
  placement.notes.push_back(fmt::format("dynamic: {} segments reserved", allocator.segments()));
  return placement;
}

}  // namespace millrace::internal
