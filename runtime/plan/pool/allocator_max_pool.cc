// Slots by order statistics: per dtype, slot j is as large as the j-th largest bucket of any unit,
// in `slots` copies.
//
// Source: MaxPoolAllocator of Megatron-LM #5462, planned with padded sizes and real dtypes. For
// pools in which each unit takes slots 0..j and nothing is known of lifetimes, the vector of slot
// sizes is minimal component by component: whoever has j buckets of a size needs j slots of it.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/plan/pool/allocator_internal.h"
#include "runtime/plan/pool/allocator_slots.h"

namespace millrace::internal {
namespace {

struct PoolSlot {
  std::vector<int32_t> members;  // at most one of each unit
  int64_t bytes = 0;
  int32_t largest = -1;  // the member that sets its size
};

// By dtype and rank.
std::map<DType, std::vector<PoolSlot>> Slots(const std::vector<Item>& items) {
  // By unit and dtype, in item order.
  std::map<std::pair<int32_t, DType>, std::vector<int32_t>> buckets;
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].unit >= 0)
      buckets[{items[i].unit, items[i].dtype}].push_back(static_cast<int32_t>(i));
  const auto bytes = [&](int32_t i) { return PaddedBytes(items[static_cast<size_t>(i)]); };
  std::map<DType, std::vector<PoolSlot>> slots;
  for (auto& [unit_and_dtype, members] : buckets) {
    std::stable_sort(members.begin(), members.end(),
                     [&](int32_t a, int32_t b) { return bytes(a) > bytes(b); });
    std::vector<PoolSlot>& of_dtype = slots[unit_and_dtype.second];
    if (of_dtype.size() < members.size()) of_dtype.resize(members.size());
    for (size_t rank = 0; rank < members.size(); ++rank) {
      PoolSlot& slot = of_dtype[rank];
      slot.members.push_back(members[rank]);
      if (slot.largest < 0 || bytes(members[rank]) > slot.bytes) {
        slot.largest = members[rank];
        slot.bytes = bytes(members[rank]);
      }
    }
  }
  return slots;
}

}  // namespace

Placement PlaceMaxPool(const std::vector<Item>& items, int slots) {
  SlotPool pool(items);
  for (const auto& [dtype, of_dtype] : Slots(items))
    for (size_t rank = 0; rank < of_dtype.size(); ++rank) {
      const PoolSlot& slot = of_dtype[rank];
      const std::string name = fmt::format("max_pool {}[{}]", Name(dtype), rank);
      pool.AddSlots(slot.members, AssignCopies(items, slot.members, slots, name), slots,
                    slot.bytes);
      pool.Note(fmt::format("{}: {} copies of {} bytes, set by '{}'", name, slots, slot.bytes,
                            items[static_cast<size_t>(slot.largest)].name));
    }
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].unit < 0) pool.AddPersistent(static_cast<int32_t>(i));
  return pool.Take();
}

}  // namespace millrace::internal
