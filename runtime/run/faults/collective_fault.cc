#include "runtime/run/faults/collective_fault.h"

#include <utility>

#include "runtime/base/error.h"
#include "runtime/exec/agreement/plan_agreement.h"

namespace millrace {
namespace {

bool AreAlike(const PlanOp& a, const PlanOp& b) {
  const std::optional<PlannedCall> x = CallOf(a.op), y = CallOf(b.op);
  return a.op.index() == b.op.index() && a.stream == b.stream && x->axes == y->axes &&
         x->bytes() == y->bytes();
}

}  // namespace

void CollectiveFault::Issue(const PlanOp& op, const std::function<void()>& issue) {
  if (!IsCollective(op.op)) return issue();
  const bool first = !reached_ && op.unit == unit_;
  reached_ = reached_ || first;
  if (kind_ == Kind::kLeaveOut && reached_) return;
  if (first) {
    held_ = &op;
    issue_held_ = issue;
    return;
  }
  issue();
  if (held_ == nullptr) return;
  MR_REQUIRE(ErrorCode::kConfig, AreAlike(op, *std::exchange(held_, nullptr)),
             "a fault that swaps collectives: the one after the first of the unit, {}, is of "
             "another kind or size",
             op.label);
  std::exchange(issue_held_, nullptr)();
}

}  // namespace millrace
