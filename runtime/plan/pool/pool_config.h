// A bucket pool alone, without a model: layer kinds, their buckets and the order of layers, to
// compare the allocators on stacks that this runtime cannot train yet (Mamba hybrids, mixtures of
// experts). Files: configs/hybrid.
//
//   {"pool": {"prefetch": 1,
//             "units": [{"kind": "M", "buckets": [{"dtype": "bf16", "numel": 38744896}]}, ...],
//             "pattern": "MEM*E..."}}
//
// `units` describes each kind once; a character of `pattern` is a layer of that kind, which is one
// unit of the pool.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/plan/pool/allocator.h"

namespace millrace {

struct PoolBucket {
  DType dtype = DType::kBF16;
  int64_t numel = 0;
  bool operator==(const PoolBucket&) const = default;
};

struct PoolUnitKind {
  char kind = 0;
  std::vector<PoolBucket> buckets;
  bool operator==(const PoolUnitKind&) const = default;
};

struct PoolConfig {
  int prefetch = 1;  // units gathered ahead of the one that computes
  std::vector<PoolUnitKind> units;
  std::string pattern;
  bool operator==(const PoolConfig&) const = default;
};

// Error(kConfig), one line per mistake: the key's path, the value, what is allowed. No key may be
// missing or unknown.
PoolConfig ParsePoolConfig(const nlohmann::json& document);

// The parameter buckets of one forward and backward. With L layers, position l < L is layer l's
// forward and 2L - 1 - l its backward. A unit is live while it computes and while one of the
// `prefetch` units before it in the same phase does; the last unit is kept over the turn-around.
// Items in order of layers, then of buckets: "12.E.0" is bucket 0 of layer 12, a unit of kind E.
std::vector<Item> PoolConfigItems(const PoolConfig& config);

// pool_bytes of each allocator, with prefetch + 1 slots where it has slots.
struct PoolFigures {
  int64_t dynamic = 0, persistent = 0, fixed = 0, max_pool = 0, coloured = 0, packed = 0,
          lower_bound = 0;
  bool operator==(const PoolFigures&) const = default;
};
// Verifies each placement.
PoolFigures PlanPoolFigures(const PoolConfig& config);

// {"pool": {"dynamic": bytes, "persistent": bytes, ..., "lower_bound": bytes}}: all that `plan FILE
// --pool-only --json` prints.
nlohmann::json PoolFiguresJson(const PoolFigures& figures);

}  // namespace millrace
