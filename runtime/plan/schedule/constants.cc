#include "runtime/plan/schedule/constants.h"

#include <variant>
#include <vector>

namespace millrace {
namespace {

// By buffer: how often ops of the schedule write to it.
std::vector<int64_t> WritesOfStep(const StepPlan& plan) {
  std::vector<int64_t> runs(plan.bodies.size(), 0);
  for (const Entry& entry : plan.schedule) ++runs[static_cast<size_t>(entry.body)];
  std::vector<int64_t> writes(plan.buffers.size(), 0);
  for (size_t b = 0; b < plan.bodies.size(); ++b)
    for (const PlanOp& op : plan.bodies[b].ops)
      ForEachUse(op.op, [&](const View& view, Access access, std::string_view) {
        if (Writes(access)) writes[static_cast<size_t>(view.buffer.value)] += runs[b];
      });
  return writes;
}

// Of a state: how often the schedule writes to it.
bool IsWritten(const StepPlan& plan, const std::vector<int64_t>& writes, const View& view,
               int64_t times) {
  return IsState(plan.buffer(view.buffer).scope) &&
         writes[static_cast<size_t>(view.buffer.value)] == times;
}

bool AreConstant(const StepPlan& plan, const std::vector<int64_t>& writes,
                 const RowLinearOp<View>& op) {
  bool constant = true;
  RowLinearOp<View>::VisitConstants(op, [&](const View& view, Access, std::string_view) {
    constant &= !view || IsWritten(plan, writes, view, 0);
  });
  return constant;
}

}  // namespace

bool ReadsConstants(const StepPlan& plan, const RowLinearOp<View>& op) {
  return AreConstant(plan, WritesOfStep(plan), op);
}

bool FindsItsCache(const StepPlan& plan, const CachedAttentionOp<View>& op) {
  const std::vector<int64_t> writes = WritesOfStep(plan);
  return IsWritten(plan, writes, op.at, 0) && IsWritten(plan, writes, op.slots, 0) &&
         IsWritten(plan, writes, op.pages, 0) && IsWritten(plan, writes, op.cache, 1);
}

void MarkConstants(StepPlan* plan) {
  const std::vector<int64_t> writes = WritesOfStep(*plan);
  for (Body& body : plan->bodies)
    for (PlanOp& op : body.ops)
      if (auto* row = std::get_if<RowLinearOp<View>>(&op.op))
        row->constant = AreConstant(*plan, writes, *row);
}

}  // namespace millrace
