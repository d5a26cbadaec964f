// Which operands an op may read before the one ahead of it has ended: those of
// RowLinearAttrs::constant, and what CachedAttentionOp finds (kernels/cuda/cache/cache.h).
#pragma once

#include "runtime/plan/step_plan.h"

namespace millrace {

// Whether nothing that the schedule runs writes what RowLinearOp::VisitConstants names: all of it
// lies in states, and no op of a step writes to these, on this rank or, by a collective, another's.
bool ReadsConstants(const StepPlan& plan, const RowLinearOp<View>& op);

// Whether nothing that the schedule runs writes where rows lie (at, slots, pages), nor the cache,
// but this op, once: all four are states.
bool FindsItsCache(const StepPlan& plan, const CachedAttentionOp<View>& op);

// Says so of each RowLinearOp of a step.
void MarkConstants(StepPlan* plan);

}  // namespace millrace
