#include "runtime/plan/schedule/constants.h"

#include <variant>
#include <vector>

namespace millrace {
namespace {

// By buffer: does an op of the schedule write to it?
std::vector<char> WrittenInStep(const StepPlan& plan) {
  std::vector<char> written(plan.buffers.size(), false);
  for (const Body& body : plan.bodies) {
    if (body.phase == Phase::kPrologue) continue;
    for (const PlanOp& op : body.ops)
      ForEachUse(op.op, [&](const View& view, Access access, std::string_view) {
        if (Writes(access)) written[static_cast<size_t>(view.buffer.value)] = true;
      });
  }
  return written;
}

bool AreConstant(const StepPlan& plan, const std::vector<char>& written,
                 const RowLinearOp<View>& op) {
  bool constant = true;
  RowLinearOp<View>::VisitConstants(op, [&](const View& view, Access, std::string_view) {
    constant &= !view || (IsState(plan.buffer(view.buffer).scope) &&
                          !written[static_cast<size_t>(view.buffer.value)]);
  });
  return constant;
}

}  // namespace

bool ReadsConstants(const StepPlan& plan, const RowLinearOp<View>& op) {
  return AreConstant(plan, WrittenInStep(plan), op);
}

void MarkConstants(StepPlan* plan) {
  const std::vector<char> written = WrittenInStep(*plan);
  for (Body& body : plan->bodies)
    for (PlanOp& op : body.ops)
      if (auto* row = std::get_if<RowLinearOp<View>>(&op.op))
        row->constant = AreConstant(*plan, written, *row);
}

}  // namespace millrace
