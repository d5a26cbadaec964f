// Checked execution (execution.checked): free bytes are poisoned and owned bytes guarded
// (shadow.h), and every float that an op writes is looked at. The first non-finite value fails the
// step with Error(kNonFinite) naming op, operand, buffer, element and value.
//
// Blame    An op that makes a non-finite value from finite operands, or that finds one in its
//          operands. Values that came from other ranks through a collective are theirs to report:
//          they, and what is computed from them, pass here. While this rank's step scalars ask for
//          an injected fault, nothing is looked at.
// Live     Of rows in the order of experts only those that the device counts are written and looked
//          at (kernels/ops/moe_ops.h). Who reads their buffer next has no count; it is remembered.
// Arena    Memory of any device; one object per rank, for all plans of the rank, in issue order.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/id_vector.h"
#include "runtime/base/step_scalars.h"
#include "runtime/exec/checked/shadow.h"
#include "runtime/exec/executor.h"

namespace millrace {

class CheckedMemory final : public OpObserver {
 public:
  // Plans that are observed, and the arena, outlive this object.
  CheckedMemory(const Mesh& mesh, int rank, const ArenaView& arena)
      : mesh_(mesh), rank_(rank), arena_(arena) {}

  void BeginRun(const StepPlan& plan) override;
  void Before(const PlanOp& op, int64_t position, int microbatch) override;
  void After(const PlanOp& op, int64_t position, int microbatch) override;
  void EndRun() override;

 private:
  struct Finding {
    std::string text;
    BufferId buffer;
  };
  void StartSchedule(int64_t position);
  const Body& body() const { return plan_->body((*schedule_)[static_cast<size_t>(entry_)]); }
  bool Looks(const PlanOp& op) const;  // at its operands
  StepScalars Scalars() const;         // as they are now; zeros where the plan has none
  // Of the buffers that the op has written: which of their elements are live.
  void NoteLive(const PlanOp& op, int64_t position, int microbatch);
  // Non-finite elements of operands that satisfy `wanted(access)`: the first of each operand.
  template <class Wanted>
  std::vector<Finding> Scan(const PlanOp& op, int64_t position, int microbatch,
                            Wanted&& wanted) const;

  const Mesh mesh_;
  const int rank_;
  mutable ArenaView arena_;  // looking changes nothing but where a copy is kept
  std::map<const StepPlan*, std::unique_ptr<Shadow>> shadows_;

  // Of the run in progress, or the last one.
  const StepPlan* plan_ = nullptr;
  Shadow* shadow_ = nullptr;
  const std::vector<Entry>* schedule_ = nullptr;  // null until the first op tells which
  int entry_ = 0, op_ = 0;
  bool foreign_input_ = false;
  int64_t scalars_at_ = -1;           // in the arena, -1: the plan has none
  IdVector<BufferId, char> foreign_;  // holds a non-finite value that another rank made
  IdVector<BufferId, int64_t> live_;  // elements from here on are not live; kAllLive: none
};

}  // namespace millrace
