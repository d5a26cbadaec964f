#include "runtime/plan/schedule/allocator_table.h"

#include "runtime/base/arithmetic.h"
#include "runtime/plan/schedule/pool_items.h"

namespace millrace {
namespace {

int64_t BytesOf(const PoolItems& pool, const PoolOptions& options) {
  if (pool.items.empty()) return 0;
  const Placement placement = PlanPool(pool.items, options);
  VerifyPlacement(pool.items, placement);
  return placement.pool_bytes;
}

AllocatorBytes BytesWith(const StepBuilder& b, AllocatorKind kind) {
  AllocatorBytes bytes;
  bytes.arena = b.plan.persistent_bytes;
  for (const Stretch& stretch : StretchesOf(b, kind)) {
    const int64_t placed = BytesOf(stretch.pool, {stretch.kind, stretch.slots});
    if (stretch.tag == PoolTag::kParam) bytes.parameters = placed;
    if (stretch.tag == PoolTag::kGrad) bytes.gradients = placed;
    bytes.arena += placed;
  }
  if (kind == AllocatorKind::kPacked) {
    bytes.parameters = BytesOf(ItemsOf(b, {PoolTag::kParam}), {.kind = kind});
    bytes.gradients = BytesOf(ItemsOf(b, {PoolTag::kGrad}), {.kind = kind});
  }
  bytes.arena = RoundUp(bytes.arena, kArenaAlignment);
  return bytes;
}

}  // namespace

AllocatorTable AllocatorTableOf(const StepBuilder& b) {
  AllocatorTable table;
  table.lower_bound = {LowerBound(ItemsOf(b, {PoolTag::kParam}).items),
                       LowerBound(ItemsOf(b, {PoolTag::kGrad}).items), b.plan.lower_bound};
  for (size_t k = NamesOf(AllocatorKind{}).size(); k-- > 0;) {
    const auto kind = static_cast<AllocatorKind>(k);
    table.rows.push_back({kind, BytesWith(b, kind)});
  }
  return table;
}

}  // namespace millrace
