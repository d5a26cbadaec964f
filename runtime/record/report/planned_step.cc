#include "runtime/record/report/planned_step.h"

namespace millrace {

PlannedStep PlannedStepOf(const ReportInput& input) {
  const StepPlan& plan = input.plan;
  const PlanReport report = MakePlanReport(input);
  PlannedStep step{report.hash,
                   report.machine.title,
                   report.memory.by_class,
                   report.memory.at_peak,
                   report.memory.arena,
                   report.memory.lower_bound,
                   ArenaMapOf(plan, report.memory.peak_position),
                   {}};
  for (const SimulatedOp& run :
       Simulate(plan, plan.schedule, report.mesh, report.machine, input.join).ops) {
    const Entry& entry = plan.schedule[static_cast<size_t>(run.entry)];
    const PlanOp& op =
        plan.bodies[static_cast<size_t>(entry.body)].ops[static_cast<size_t>(run.op)];
    step.ops.push_back(
        {op.label, std::string(OpName(op.op)), run.stream, run.begin * 1e3, run.end * 1e3});
  }
  return step;
}

}  // namespace millrace
