// A rank that does not issue the collectives that its plan has, for tests of what finds that.
#pragma once

#include <functional>
#include <string>

#include "runtime/exec/observe/observers.h"

namespace millrace {

// For Engine::Observe, for one step.
class CollectiveFault final : public OpObserver {
 public:
  enum class Kind {
    // Leaves out the first collective of the unit and all later ones of the step: the job hangs.
    kLeaveOut,
    // Issues the first collective of the unit after the next one, which must be of the same kind,
    // group and size, so that nothing hangs: Error(kConfig).
    kSwap
  };
  CollectiveFault(Kind kind, UnitId unit) : kind_(kind), unit_(unit) {}

  void BeginRun(const StepPlan&) override { reached_ = false; }
  void Before(const PlanOp&, int64_t, int) override {}
  void Issue(const PlanOp& op, const std::function<void()>& issue) override;
  void After(const PlanOp&, int64_t, int) override {}
  void EndRun() override {}
  bool looks_at_memory() const override { return false; }

 private:
  const Kind kind_;
  const UnitId unit_;
  bool reached_ = false;          // the unit's first collective of this run
  const PlanOp* held_ = nullptr;  // until the next collective was issued
  std::function<void()> issue_held_;
};

}  // namespace millrace
