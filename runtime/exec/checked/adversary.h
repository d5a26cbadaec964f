// Runs a schedule in an order that nobody would choose, but that its streams and edges allow: what
// a device with other timings could do. For tests.
//
// Order    Each stream is a queue; the next op comes from a queue whose head waits for nothing,
//          chosen by the seed, now favouring one stream, now starving it. A function of plan,
//          schedule and seed alone: the same on every rank, so that collectives meet.
// Checks   shadow.h around each op.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/exec/checked/shadow.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

struct OpRef {
  int entry = 0, op = 0;
  bool operator==(const OpRef&) const = default;
};

// Error(kInternal) when the edges allow no order.
std::vector<OpRef> RandomOrder(const StepPlan& plan, const std::vector<Entry>& schedule,
                               uint64_t seed);

class Adversary {
 public:
  // `rank` of the mesh; `plan` and the arena (host memory) outlive the adversary.
  Adversary(const StepPlan& plan, const Mesh& mesh, int rank, std::byte* arena, uint64_t seed);

  // Runs plan.schedule or plan.prologue; every run has an order of its own.
  // run_op executes the op at once.
  void Run(const std::vector<Entry>& schedule,
           const std::function<void(const Entry&, int entry_index, int op_index)>& run_op);

  // Another plan has used the arena.
  void Reset() { shadow_.Reset(); }

 private:
  const StepPlan& plan_;
  Shadow shadow_;
  uint64_t seed_;
  uint64_t runs_ = 0;
};

}  // namespace millrace
