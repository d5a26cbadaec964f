// Which operands an op may read before the one ahead of it has ended: those of
// RowLinearAttrs::constant and MatmulAttrs::constant, and what CachedAttentionOp finds
// (kernels/cuda/cache/cache.h).
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/step_plan.h"

namespace millrace {

// How often the schedule of a plan writes to each of its buffers. The plan outlives it.
class StepWrites {
 public:
  explicit StepWrites(const StepPlan& plan);

  // Whether nothing that the schedule runs writes what RowLinearOp::VisitConstants names: all of it
  // lies in states, and no op of a step writes to these, on this rank or, by a collective,
  // another's.
  bool AreConstant(const RowLinearOp<View>& op) const;
  bool AreConstant(const MatmulOp<View>& op) const;  // b

  // Whether nothing that the schedule runs writes where rows lie (at, slots, pages), nor the cache,
  // but this op, once: all four are states.
  bool FindsItsCache(const CachedAttentionOp<View>& op) const;

 private:
  bool IsState(const View& view, int64_t writes) const;  // written so often

  const StepPlan& plan_;
  std::vector<int64_t> writes_;  // by buffer
};

// Says of each RowLinearOp of a step, and of each product of one row in order, whether its
// constants are.
void MarkConstants(StepPlan* plan);

}  // namespace millrace
