#include "tests/support/model_run.h"

#include "comm/host_collectives.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/plan/check/checker.h"
#include "runtime/plan/graph/gradients.h"
#include "tests/support/engine_case.h"

namespace millrace::test {

void RunModel(const Model& model, const ModelRun& run,
              const std::function<void(Engine& engine, int rank)>& fn) {
  const ShardLayout layout = PlanShards(model.spec(), run.mesh, run.precision);
  PlanOptions options = run.options;
  options.comm_scratch_bytes = ScratchBytes(run.mesh.world());
  const auto lowered = [&](bool trains) {
    ForwardBuilder builder(model.spec(), run.options.shape, run.precision.compute,
                           run.precision.norm_params, run.mesh);
    builder.EncodeLinears(run.linears);
    model.EmitForward(builder, trains ? HeadMode::kTrainLoss : HeadMode::kEvalLoss);
    SemanticGraph graph = std::move(builder).Finish();
    if (trains) graph = AddGradients(std::move(graph), run.recompute);
    LowerOptions lower;
    lower.loss_chunk_rows = 5;  // several chunks, the last one short
    return Lower(graph, lower);
  };
  const Program train = lowered(true), eval = lowered(false);
  RunPlans plans{PlanStates(layout, options, {&train, &eval}), {}};
  plans.plans.push_back(PlanStep(layout, plans.states, train, options, "train"));
  plans.plans.push_back(PlanStep(layout, plans.states, eval, options, "eval"));
  for (const StepPlan& plan : plans.plans) CheckPlan(plan, run.mesh, run.options.accumulate);
  RunEngines(layout, plans, run.engine, fn);
}

std::map<std::string, std::vector<float>> FirstGradients(Engine& engine,
                                                         const PlanOptions& options) {
  std::map<std::string, std::vector<float>> gradients;
  const auto share = static_cast<float>(1 - options.adamw.beta1);
  ForEachLogicalTensor(engine, "adam_m",
                       [&](const ParamPlacement& param, std::span<const float> values) {
                         for (const float value : values)
                           gradients[param.spec.name].push_back(value / share);
                       });
  return gradients;
}

}  // namespace millrace::test
