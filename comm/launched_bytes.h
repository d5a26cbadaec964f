// What a collective that was launched on a device sends, per rank, from the sizes that the launch
// was given: device transports cannot see their bytes move. tools/bench/wire_check.py compares
// these figures with the links' own counters. Host transports do not use this; they count
// (comm/byte_exchange.h). The plan's prediction has its own formulas
// (runtime/plan/cost/cost_model.cc).
#pragma once

#include <cstdint>

namespace millrace {

// All-gather and reduce-scatter with `shard_bytes` per rank, all-to-all with pieces of as many: a
// shard's worth for each other rank.
constexpr int64_t LaunchedShardBytes(int world, int64_t shard_bytes) noexcept {
  return (world - 1) * shard_bytes;
}

// All-reduce of `numel` elements: every rank sends its part of the addends, then of the sums.
constexpr int64_t LaunchedAllReduceBytes(int world, int64_t numel, int64_t element_bytes) noexcept {
  return 2 * (world - 1) * ((numel + world - 1) / world) * element_bytes;
}

}  // namespace millrace
