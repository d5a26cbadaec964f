// The proof that a placement is one, written without the allocators' helpers, so that one mistake
// cannot hide the other.
#include <algorithm>
#include <map>

#include "runtime/base/error.h"
#include "runtime/plan/pool/allocator.h"

namespace millrace {
namespace {

struct Stay {  // one interval of one item, at its address
  const Item* item;
  Interval live;
  int64_t offset, end;
};

std::vector<Stay> Stays(const std::vector<Item>& items, const Placement& placement) {
  const bool by_interval = !placement.interval_offsets.empty();
  MR_CHECK_EQ(placement.offsets.size(), items.size(), "a placement has one offset per item");
  if (by_interval)
    MR_CHECK_EQ(placement.interval_offsets.size(), items.size(),
                "interval offsets, one row per item");
  std::vector<Stay> stays;
  for (size_t i = 0; i < items.size(); ++i) {
    const Item& item = items[i];
    if (by_interval) {
      const std::vector<int64_t>& row = placement.interval_offsets[i];
      MR_CHECK(
          row.size() == item.intervals.size() && (row.empty() || row[0] == placement.offsets[i]),
          "item '{}' has {} intervals and {} interval offsets, the first of which is its offset",
          item.name, item.intervals.size(), row.size());
    }
    for (size_t k = 0; k < item.intervals.size(); ++k) {
      const int64_t offset = by_interval ? placement.interval_offsets[i][k] : placement.offsets[i];
      stays.push_back({&item, item.intervals[k], offset, offset + item.bytes});
    }
  }
  return stays;
}

[[noreturn]] void ThrowOverlap(const Stay& a, const Stay& b) {
  throw Error(ErrorCode::kInternal,
              fmt::format("'{}' at bytes [{}, {}), live during [{}, {}), overlaps '{}' at [{}, "
                          "{}), live during [{}, {})",
                          a.item->name, a.offset, a.end, a.live.begin, a.live.end, b.item->name,
                          b.offset, b.end, b.live.begin, b.live.end));
}

}  // namespace

void VerifyPlacement(const std::vector<Item>& items, const Placement& placement) {
  std::vector<Stay> stays = Stays(items, placement);
  for (const Stay& stay : stays) {
    MR_CHECK(stay.offset % kArenaAlignment == 0,
             "item '{}' at offset {}, which is no multiple of {}", stay.item->name, stay.offset,
             kArenaAlignment);
    MR_CHECK(stay.offset >= 0 && stay.end <= placement.pool_bytes,
             "item '{}' at bytes [{}, {}) of a pool of {}", stay.item->name, stay.offset, stay.end,
             placement.pool_bytes);
  }

  // Walk the begins; whoever has ended by then leaves. As long as the live ones are disjoint, a
  // newcomer can only overlap its neighbours.
  std::erase_if(stays, [](const Stay& stay) { return stay.end == stay.offset; });
  std::sort(stays.begin(), stays.end(),
            [](const Stay& a, const Stay& b) { return a.live.begin < b.live.begin; });
  std::multimap<int64_t, const Stay*> ending;  // by the position where it ends
  std::map<int64_t, const Stay*> live;         // by offset
  for (const Stay& stay : stays) {
    while (!ending.empty() && ending.begin()->first <= stay.live.begin) {
      live.erase(ending.begin()->second->offset);
      ending.erase(ending.begin());
    }
    const auto above = live.lower_bound(stay.offset);
    if (above != live.end() && above->second->offset < stay.end) ThrowOverlap(stay, *above->second);
    if (above != live.begin() && std::prev(above)->second->end > stay.offset)
      ThrowOverlap(stay, *std::prev(above)->second);
    live.emplace(stay.offset, &stay);
    ending.emplace(stay.live.end, &stay);
  }
}

}  // namespace millrace
