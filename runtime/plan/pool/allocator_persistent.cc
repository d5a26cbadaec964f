// Every item has bytes of its own: what a pool saves is measured against this.
#include "runtime/plan/pool/allocator_internal.h"

namespace millrace::internal {

Placement PlacePersistent(const std::vector<Item>& items) {
  Placement placement;
  for (const Item& item : items) {
    placement.offsets.push_back(placement.pool_bytes);
    placement.pool_bytes += PaddedBytes(item);
  }
  return placement;
}

}  // namespace millrace::internal
