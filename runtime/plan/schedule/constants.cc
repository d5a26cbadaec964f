#include "runtime/plan/schedule/constants.h"

#include <variant>
#include <vector>

namespace millrace {

StepWrites::StepWrites(const StepPlan& plan) : plan_(plan), writes_(plan.buffers.size(), 0) {
  std::vector<int64_t> runs(plan.bodies.size(), 0);
  for (const Entry& entry : plan.schedule) ++runs[static_cast<size_t>(entry.body)];
  for (size_t b = 0; b < plan.bodies.size(); ++b)
    for (const PlanOp& op : plan.bodies[b].ops)
      ForEachUse(op.op, [&](const View& view, Access access, std::string_view) {
        if (Writes(access)) writes_[static_cast<size_t>(view.buffer.value)] += runs[b];
      });
}

bool StepWrites::IsState(const View& view, int64_t writes) const {
  return millrace::IsState(plan_.buffer(view.buffer).scope) &&
         writes_[static_cast<size_t>(view.buffer.value)] == writes;
}

bool StepWrites::AreConstant(const RowLinearOp<View>& op) const {
  bool constant = true;
  RowLinearOp<View>::VisitConstants(op, [&](const View& view, Access, std::string_view) {
    constant &= !view || IsState(view, 0);
  });
  return constant;
}

bool StepWrites::AreConstant(const MatmulOp<View>& op) const { return IsState(op.b, 0); }

bool StepWrites::FindsItsCache(const CachedAttentionOp<View>& op) const {
  return IsState(op.at, 0) && IsState(op.slots, 0) && IsState(op.pages, 0) && IsState(op.cache, 1);
}

void MarkConstants(StepPlan* plan) {
  const StepWrites writes(*plan);
  for (Body& body : plan->bodies)
    for (PlanOp& op : body.ops) {
      if (auto* row = std::get_if<RowLinearOp<View>>(&op.op))
        row->constant = writes.AreConstant(*row);
      auto* const product = std::get_if<MatmulOp<View>>(&op.op);
      if (product != nullptr && product->in_order && product->a.layout.dims[0] == 1)
        product->constant = writes.AreConstant(*product);
    }
}

}  // namespace millrace
