// One plan on all ranks, or nothing runs: compared before any memory is allocated and any op is
// issued, from the plans alone.
//
// Order    Each communicator runs its calls one after the other, so all ranks of its group must
//          issue the same calls in the same order: ranks that do not hang, or go on with each
//          other's bytes. The lists of each communicator are compared within its group first, since
//          their difference says most.
// Errors   kConfig, the same on every rank of the world.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/comm_set.h"
#include "runtime/plan/layout/shard_layout.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

// What a collective of a plan moves, over which axes.
struct PlannedCall {
  AxisSet axes;
  const View* data = nullptr;  // the whole, of a gather or a reduction
  int64_t bytes() const { return data->layout.numel() * Bytes(data->layout.dtype); }
};
std::optional<PlannedCall> CallOf(const KernelOp& op);  // none: not a collective

// A collective over the world, by the host's transport. `plans`: those of this rank, prologues
// included. The error names the rank, the communicator and the first call that differs (op, unit,
// bytes), or where no list of calls differs, both plans' hashes.
void RequireSamePlans(const CommSet& comms, const ShardLayout& layout,
                      const std::vector<const StepPlan*>& plans);

}  // namespace millrace
