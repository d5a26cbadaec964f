// Who is called around the ops of a plan: as they are issued one by one, or as they are captured.
#pragma once

#include <cstdint>
#include <functional>

#include "runtime/base/stream.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

// Called around each op of an eager walk: checked execution, its tests, and timers. Positions are
// on the canonical timeline.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void BeginRun(const StepPlan& plan) = 0;
  virtual void Before(const PlanOp& op, int64_t position, int microbatch) = 0;
  // Called between the two: `issue` puts the op on its stream. Tests of what finds a wrong order
  // may call it later, or not at all.
  virtual void Issue(const PlanOp& op, const std::function<void()>& issue);
  virtual void After(const PlanOp& op, int64_t position, int microbatch) = 0;
  virtual void EndRun() = 0;
  // Whether After may be called only once the device has done the op. Else
  // nothing waits for the device.
  virtual bool looks_at_memory() const { return true; }
};

inline void OpObserver::Issue(const PlanOp&, const std::function<void()>& issue) { issue(); }

// Called around each op while a step's graphs are captured, on the op's stream.
class CaptureObserver {
 public:
  virtual ~CaptureObserver() = default;
  virtual void BeginGraph() = 0;
  // `waits`: the op has waited for ops of other streams.
  virtual void Before(const PlanOp& op, Stream& stream, bool waits) = 0;
  virtual void After(const PlanOp& op, Stream& stream) = 0;
};

}  // namespace millrace
