#include "runtime/plan/pool/allocator_occupancy.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "runtime/plan/pool/allocator_internal.h"

namespace millrace::internal {

void ByteRuns::Add(int64_t begin, int64_t end) {
  // All runs that touch the new one, [first, last), become one with it.
  const auto first = std::lower_bound(runs_.begin(), runs_.end(), begin,
                                      [](const auto& run, int64_t at) { return run.second < at; });
  auto last = first;
  while (last != runs_.end() && last->first <= end) ++last;
  if (first == last) {
    runs_.insert(first, {begin, end});
    return;
  }
  first->first = std::min(first->first, begin);
  first->second = std::max(std::prev(last)->second, end);
  runs_.erase(std::next(first), last);
}

int64_t ByteRuns::LowestFrom(int64_t bottom, int64_t bytes) const {
  auto run = std::upper_bound(runs_.begin(), runs_.end(), bottom,
                              [](int64_t at, const auto& r) { return at < r.second; });
  for (; run != runs_.end() && run->first - bottom < bytes; ++run) bottom = run->second;
  return bottom;
}

ItemCuts::ItemCuts(const std::vector<Item>& items) {
  // Positions are those of a timeline, each of which some op has: a table of all is no waste.
  int64_t begin = std::numeric_limits<int64_t>::max(), end = 0;
  for (const Item& item : items) {
    begin = std::min(begin, item.intervals.front().begin);
    end = std::max(end, item.intervals.back().end);
  }
  std::vector<int32_t> number(items.empty() ? 0 : static_cast<size_t>(end - begin + 1));
  const auto at = [&](int64_t position) -> int32_t& {
    return number[static_cast<size_t>(position - begin)];
  };
  for (const Item& item : items)
    for (const Interval& live : item.intervals) at(live.begin) = at(live.end) = 1;
  for (int32_t& n : number) n = n == 0 ? 0 : count_++;
  first_.push_back(0);
  for (const Item& item : items) {
    for (const Interval& live : item.intervals) ranges_.emplace_back(at(live.begin), at(live.end));
    first_.push_back(ranges_.size());
  }
}

Occupancy::Occupancy(const std::vector<Item>& items, const ItemCuts& cuts) : cuts_(cuts) {
  for (const Item& item : items) bytes_.push_back(PaddedBytes(item));
  while (leaves_ < static_cast<size_t>(cuts.count())) leaves_ *= 2;
  nodes_.resize(2 * leaves_);
}

template <class OnWay, class Within>
void Occupancy::Visit(std::pair<int32_t, int32_t> range, OnWay&& on_way, Within&& within) const {
  size_t first = leaves_ + static_cast<size_t>(range.first),
         last = leaves_ + static_cast<size_t>(range.second);
  for (size_t node : {first, last - 1})
    for (; node > 0 && nodes_[node].visit != visit_; node /= 2) {
      nodes_[node].visit = visit_;
      on_way(node);
    }
  for (; first < last; first /= 2, last /= 2) {
    if (first % 2 == 1) within(first++);
    if (last % 2 == 1) within(--last);
  }
}

const std::vector<const ByteRuns*>& Occupancy::TakenDuring(int32_t item) const {
  ++visit_;
  taken_.clear();
  const auto look = [&](const ByteRuns& runs) {
    if (runs.size() > 0) taken_.push_back(&runs);
    looked_at_ += 1 + static_cast<int64_t>(runs.size());
  };
  for (const auto& range : cuts_.of(item))
    Visit(
        range, [&](size_t node) { look(nodes_[node].throughout); },
        [&](size_t node) { look(nodes_[node].anywhere); });
  return taken_;
}

// Each list of runs in turn lifts the offset over those of its runs that are in the way, until none
// does: the lists need not be merged, and few of their runs are met.
int64_t Occupancy::LowestFor(int32_t item) const {
  const int64_t bytes = bytes_[static_cast<size_t>(item)];
  const std::vector<const ByteRuns*>& lists = TakenDuring(item);
  int64_t bottom = 0;
  for (size_t agreed = 0, k = 0; agreed < lists.size(); k = k + 1 == lists.size() ? 0 : k + 1) {
    const int64_t lifted = lists[k]->LowestFrom(bottom, bytes);
    agreed = lifted == bottom ? agreed + 1 : 1;
    bottom = lifted;
  }
  return bottom;
}

int64_t Occupancy::TightestFor(int32_t item, int64_t cap) const {
  const int64_t bytes = bytes_[static_cast<size_t>(item)];
  int64_t bottom = 0, best = -1, best_gap = std::numeric_limits<int64_t>::max();
  const auto consider = [&](int64_t gap_end) {
    const int64_t gap = gap_end - bottom;
    if (gap < bytes || gap >= best_gap) return;
    best = bottom;
    best_gap = gap;
  };
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (const ByteRuns* list : TakenDuring(item))
    runs.insert(runs.end(), list->begin(), list->end());
  std::sort(runs.begin(), runs.end());
  for (const auto& [begin, end] : runs) {
    consider(begin);
    bottom = std::max(bottom, end);
  }
  consider(cap);
  return best >= 0 ? best : bottom;
}

void Occupancy::Clear() {
  for (Node& node : nodes_) node = {};
  visit_ = 0;
}

void Occupancy::Place(int32_t item, int64_t offset) {
  const int64_t end = offset + bytes_[static_cast<size_t>(item)];
  if (offset == end) return;
  ++visit_;
  for (const auto& range : cuts_.of(item))
    Visit(
        range, [&](size_t node) { nodes_[node].anywhere.Add(offset, end); },
        [&](size_t node) {
          nodes_[node].throughout.Add(offset, end);
          nodes_[node].anywhere.Add(offset, end);
        });
}

}  // namespace millrace::internal
