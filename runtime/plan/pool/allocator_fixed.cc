// Double buffering for the commonest unit shape, everything else persistent.
//
// Source: Megatron-FSDP's FixedPoolAllocator, which compares units bucket by bucket in order; here
// with padded sizes and real dtypes. On hybrid stacks most units are not of the commonest shape,
// which is what the other pools improve on.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/plan/pool/allocator_internal.h"
#include "runtime/plan/pool/allocator_slots.h"

namespace millrace::internal {
namespace {

using Shape =
    std::vector<std::pair<DType, int64_t>>;  // dtype and padded bytes of each bucket, in order

struct Unit {
  std::vector<int32_t> items;
  Shape shape;
};

// Units in order of their first item.
std::vector<Unit> Units(const std::vector<Item>& items) {
  std::vector<Unit> units;
  std::map<int32_t, size_t> index;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].unit < 0) continue;
    const auto [entry, is_new] = index.emplace(items[i].unit, units.size());
    if (is_new) units.emplace_back();
    Unit& unit = units[entry->second];
    unit.items.push_back(static_cast<int32_t>(i));
    unit.shape.emplace_back(items[i].dtype, PaddedBytes(items[i]));
  }
  return units;
}

// The first met of the commonest shapes.
Shape CommonestShape(const std::vector<Unit>& units) {
  std::map<Shape, int> count;
  for (const Unit& unit : units) ++count[unit.shape];
  Shape commonest;
  int most = 0;
  for (const Unit& unit : units)
    if (count[unit.shape] > most) {
      most = count[unit.shape];
      commonest = unit.shape;
    }
  return commonest;
}

}  // namespace

Placement PlaceFixed(const std::vector<Item>& items, int slots) {
  const std::vector<Unit> units = Units(items);
  const Shape shape = CommonestShape(units);
  SlotPool pool(items);
  std::vector<bool> in_slot(items.size(), false);
  for (size_t j = 0; j < shape.size(); ++j) {
    std::vector<int32_t> members;  // bucket j of each unit of that shape
    for (const Unit& unit : units)
      if (unit.shape == shape) members.push_back(unit.items[j]);
    for (const int32_t m : members) in_slot[static_cast<size_t>(m)] = true;
    const std::string slot = fmt::format("fixed {}[{}]", Name(shape[j].first), j);
    pool.AddSlots(members, AssignCopies(items, members, slots, slot), slots, shape[j].second);
    pool.Note(fmt::format("{}: {} copies of {} bytes for {} units such as '{}'", slot, slots,
                          shape[j].second, members.size(),
                          items[static_cast<size_t>(members[0])].name));
  }
  const auto persistent = std::count(in_slot.begin(), in_slot.end(), false);
  for (size_t i = 0; i < items.size(); ++i)
    if (!in_slot[i]) pool.AddPersistent(static_cast<int32_t>(i));
  pool.Note(fmt::format("fixed: {} items persistent", persistent));
  return pool.Take();
}

}  // namespace millrace::internal
