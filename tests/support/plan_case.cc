#include "tests/support/plan_case.h"

#include <fmt/format.h>

#include <utility>

#include "models/model.h"
#include "runtime/plan/graph/gradients.h"

namespace millrace::test {
namespace {

ModelOptions OptionsOf(const PlanCase& c) {
  ModelOptions options = c.model;
  options.tensor = c.mesh.Size(Axis::kTensor);
  return options;
}

BatchShape ShapeOf(const PlanCase& c) {
  return {.batch = c.kind == "generate" ? 1 : 2, .seq = c.model.seq_len, .strips = c.strips};
}

}  // namespace

Program ProgramOf(const PlanCase& c) {
  const std::unique_ptr<Model> model = MakeModel(OptionsOf(c));
  ForwardBuilder builder(model->spec(), ShapeOf(c), c.precision.compute, c.precision.norm_params,
                         c.mesh);
  builder.EncodeLinears(c.linears);
  model->EmitForward(builder, c.kind == "train"  ? HeadMode::kTrainLoss
                              : c.kind == "eval" ? HeadMode::kEvalLoss
                                                 : HeadMode::kLogits);
  SemanticGraph graph = std::move(builder).Finish();
  if (c.kind == "train") graph = AddGradients(std::move(graph), c.recompute);
  LowerOptions lower;
  lower.backend = c.options.backend;
  lower.gather = c.gather;
  lower.loss_chunk_rows = 5;  // several chunks, the last one short
  return Lower(graph, lower);
}

ShardLayout LayoutOf(const PlanCase& c) {
  return PlanShards(MakeModel(OptionsOf(c))->spec(), c.mesh, c.precision);
}

StateLayout StatesOf(PlanCase c) {
  c.options.shape = {.batch = 2, .seq = c.model.seq_len, .strips = c.strips};
  const Program program = ProgramOf(c);
  return PlanStates(LayoutOf(c), c.options, {&program});
}

StepPlan PlanOf(PlanCase c) {
  c.options.shape = {.batch = 2, .seq = c.model.seq_len, .strips = c.strips};
  return PlanStep(LayoutOf(c), StatesOf(c), ProgramOf(c), c.options, c.kind);
}

std::string ToString(const PlanCase& c) {
  const PlanOptions& o = c.options;
  return fmt::format(
      "family {} layers {} tied {} | {} strips {} | compute {} norms {} accumulate {} "
      "wire {} linears {} gather {} | recompute {} kind {} | accumulate {} reshard {} downcast {} "
      "sync {} concat {} allocator {} prefetch {} slots {} reduce_depth {} overlap {}",
      c.model.family, c.model.layers(), c.model.tied, ToString(c.mesh), c.strips,
      Name(c.precision.compute), Name(c.precision.norm_params), Name(c.precision.grad_accumulate),
      Name(c.precision.grad_wire), Name(c.linears), Name(c.gather), static_cast<int>(c.recompute),
      c.kind, o.accumulate, static_cast<int>(o.reshard), static_cast<int>(o.downcast),
      static_cast<int>(o.grad_sync), static_cast<int>(o.grad_concat), static_cast<int>(o.allocator),
      o.prefetch, o.slots, o.reduce_depth, o.overlap_weight_gradients);
}

}  // namespace millrace::test
