// Which elements of a parameter lie where in a rank's shard: the one place that knows. Initial
// values, checkpoints, Hugging Face folders and hashes all walk these runs.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/plan/layout/shard_layout.h"

namespace millrace {

// Elements that follow each other both in the rank's shard of the flat and in the parameter, as
// row-major over its logical dims.
struct ParamRun {
  ParamId param;
  int64_t local = 0;    // the first one's place in the shard
  int64_t logical = 0;  // and in the parameter
  int64_t numel = 0;
  bool operator==(const ParamRun&) const = default;
};

// Calls f for each run of the parameter in the shard of `rank` (of the mesh), ascending in both
// places; of a flat, for each of its parameters in order. Over the ranks of the flat's `holders`
// (Mesh::Group) every logical element is in one run. No run covers a gap.
// Error(kInternal): no such rank.
void ForEachRun(const ShardLayout& layout, ParamId param, int rank,
                const std::function<void(const ParamRun&)>& f);
void ForEachRun(const ShardLayout& layout, FlatId flat, int rank,
                const std::function<void(const ParamRun&)>& f);
// Of those logical elements of the parameter that are within a range: runs end at its ends. Their
// places in the shard follow each other. What lies before the range costs nothing.
void ForEachRunWithin(const ShardLayout& layout, ParamId param, const Range& logical, int rank,
                      const std::function<void(const ParamRun&)>& f);

// The same of a whole flat parameter, and of all ranks at once: as the kernels of an update read
// it, which have to know an element by what it is. A run each for a parameter or for a fused part
// of one; of one that is split along two dims, for each place in the dims before these.
// Error(kConfig): a parameter that is split along three dims, or in parts along another than the
// first, or the first that is split.
std::vector<LogicalRun> LogicalRunsOf(const ShardLayout& layout, FlatId flat);

}  // namespace millrace
