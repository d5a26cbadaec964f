// Slots: reserved ranges that several buckets take turns in. Shared by the fixed, max-pool and
// coloured pools; not for others.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/pool/allocator.h"

namespace millrace::internal {

// A placement under construction that grows slot by slot.
class SlotPool {
 public:
  explicit SlotPool(const std::vector<Item>& items) : items_(items) {
    placement_.offsets.resize(items.size(), 0);
  }

  // Appends `copies` slots of `bytes` each and gives members[i] the copy copy_of[i].
  void AddSlots(const std::vector<int32_t>& members, const std::vector<int>& copy_of, int copies,
                int64_t bytes);
  // Appends bytes of its own for one item.
  void AddPersistent(int32_t item);
  void Note(std::string text) { placement_.notes.push_back(std::move(text)); }
  Placement Take() { return std::move(placement_); }

 private:
  const std::vector<Item>& items_;
  Placement placement_;
};

// A copy in [0, copies) for each member (index into items), such that members that are live
// together never share one. Members are taken in order of first use, each to the free copy used
// least recently: a gather then rarely waits for the last reader of its slot. Error(kConfig) naming
// two items, `slot` and memory.slots: more are live at once than there are copies, or, since an
// item keeps its copy in all its intervals, none of the ways that were tried works out.
std::vector<int> AssignCopies(const std::vector<Item>& items, const std::vector<int32_t>& members,
                              int copies, const std::string& slot);

}  // namespace millrace::internal
