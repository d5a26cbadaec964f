#include "runtime/run/assemble.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/plan/check/checker.h"
#include "runtime/plan/check/seams.h"
#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/graph/model_flops.h"

namespace millrace {
namespace {

DType DTypeOf(PrecisionConfig::Format format) {
  return format == PrecisionConfig::Format::kBf16 ? DType::kBF16 : DType::kF32;
}

LearningRate LearningRateOf(const Config& config) {
  const ScheduleConfig& schedule = config.optimizer.schedule;
  LearningRate rate;
  rate.kind = schedule.kind;
  rate.lr = config.optimizer.lr;
  rate.min_lr = schedule.min_lr;
  rate.warmup = schedule.warmup;
  rate.decay_steps = schedule.DecaySteps(config.train.steps);
  rate.total_steps = config.train.steps;
  return rate;
}

// What a run can plan, in the order in which it does.
struct KnownPlan {
  std::string_view name;
  HeadMode head;
  bool trains;
};
constexpr KnownPlan kKnownPlans[] = {{"train", HeadMode::kTrainLoss, true},
                                     {"eval", HeadMode::kEvalLoss, false},
                                     {"generate", HeadMode::kLogits, false}};

SemanticGraph ForwardFor(const Config& config, const Model& model, const PrecisionPolicy& precision,
                         const KnownPlan& known, const Mesh& mesh) {
  const int64_t batch = known.head == HeadMode::kLogits ? 1 : config.train.micro_batch;
  ForwardBuilder builder(model.spec(), {batch, config.model.seq_len, config.parallel.tensor_strips},
                         precision.compute, precision.norm_params, mesh);
  model.EmitForward(builder, known.head);
  return std::move(builder).Finish();
}

LowerOptions LowerOptionsOf(const Config& config, Backend backend) {
  LowerOptions options;
  options.backend = backend;
  options.deterministic = config.execution.deterministic;
  return options;
}

RecomputeChoice RecomputeFor(const Config& config, const SemanticGraph& forward,
                             const AssembledRun& run, const BackendTraits& traits) {
  if (config.memory.recompute != Recompute::kAuto)
    return GivenRecompute(forward, config.memory.recompute);
  return ChooseRecompute({run.layout, run.plans.states, forward,
                          LowerOptionsOf(config, traits.backend), run.options,
                          traits.device_arena_bytes});
}

}  // namespace

PrecisionPolicy PrecisionOf(const Config& config) {
  PrecisionPolicy p;
  p.compute = DTypeOf(config.precision.compute);
  p.norm_params = config.precision.norms == PrecisionConfig::Norms::kFp32 ? DType::kF32 : p.compute;
  p.grad_accumulate = DTypeOf(config.precision.grad_accumulate);
  p.grad_wire = DTypeOf(config.precision.grad_wire);
  return p;
}

GraphMode GraphInForce(const Config& config) {
  return config.execution.checked ? GraphMode::kOff : config.execution.graph;
}

std::vector<std::string> ExecutionNotes(const Config& config) {
  std::vector<std::string> notes;
  if (config.execution.checked)
    notes.push_back("execution.checked walks op by op; execution.graph is not used");
  else if (config.execution.graph == GraphMode::kMicrobatch)
    notes.push_back(
        "execution.graph=microbatch joins all streams at each graph's end: gathers and reductions "
        "of one graph never run beside the next");
  return notes;
}

// Elements of the residual stream of a microbatch whose products leave room on a GPU. Measured on
// H200s: GPT-2 30M and 124M at 1024 and 4096 tokens (3.1 M elements) gain 1% on one GPU and 4 to 6%
// on two; 124M at 65536 tokens (50 M) neither gains nor loses.
constexpr int64_t kSmallActivation = int64_t{1} << 23;

PlanOptions PlanOptionsOf(const Config& config, int world, const BackendTraits& traits) {
  PlanOptions o;
  o.shape = {config.train.micro_batch, config.model.seq_len, config.parallel.tensor_strips};
  o.accumulate = static_cast<int>(config.train.Accumulate(config.parallel.DataRanks(world)));
  o.reshard = config.sharding.reshard;
  o.downcast = config.sharding.downcast;
  o.grad_sync = config.sharding.grad_sync;
  o.grad_concat = config.sharding.grad_concat;
  o.allocator = config.memory.allocator;
  o.prefetch = static_cast<int>(config.memory.prefetch);
  o.slots = static_cast<int>(config.memory.Slots());
  o.reduce_depth = static_cast<int>(config.memory.reduce_depth);
  o.budget_bytes = config.memory.budget_gib
                       ? static_cast<int64_t>(*config.memory.budget_gib * (int64_t{1} << 30))
                       : 0;
  o.overlap_weight_gradients = config.execution.overlap_weight_gradients.value_or(
      traits.backend == Backend::kCuda &&
      config.train.micro_batch * config.model.seq_len * config.model.d_model <= kSmallActivation);
  o.adamw = {config.optimizer.betas[0], config.optimizer.betas[1], config.optimizer.eps,
             config.optimizer.weight_decay};
  o.clip = config.optimizer.clip;
  o.learning_rate = LearningRateOf(config);
  o.backend = traits.backend;
  o.comm_scratch_bytes = traits.comm_scratch_bytes;
  o.execution =
      fmt::format("graph={} checked={} deterministic={}", static_cast<int>(config.execution.graph),
                  config.execution.checked, config.execution.deterministic);
  return o;
}

Mesh MeshOf(const Config& config, int world) {
  const Mesh mesh = config.parallel.MeshOver(world);
  MR_REQUIRE(ErrorCode::kConfig, mesh.world() == world,
             "parallel.replicate {} x parallel.shard {} x parallel.context {} x parallel.tensor {} "
             "is {}, but there are {} ranks",
             mesh.Size(Axis::kReplicate), mesh.Size(Axis::kShard), mesh.Size(Axis::kContext),
             mesh.Size(Axis::kTensor), mesh.world(), world);
  return mesh;
}

Drafted DraftTraining(const Config& config, int world, const BackendTraits& traits) {
  const std::unique_ptr<Model> model = MakeModel(ModelOptionsOf(config));
  const Mesh mesh = MeshOf(config, world);
  const ShardLayout layout = PlanShards(model->spec(), mesh, PrecisionOf(config));
  const PlanOptions options = PlanOptionsOf(config, world, traits);
  const Program program =
      Lower(AddGradients(ForwardFor(config, *model, layout.precision, kKnownPlans[0], mesh),
                         config.memory.recompute),
            LowerOptionsOf(config, traits.backend));
  return {mesh, DraftStep(layout, PlanStates(layout, options, {&program}), program, options,
                          std::string(kKnownPlans[0].name))};
}

AssembledRun Assemble(const Config& config, int world, const BackendTraits& traits,
                      const PlanSelection& selection) {
  const std::unique_ptr<Model> model = MakeModel(ModelOptionsOf(config));
  AssembledRun run;
  run.spec = model->spec();
  const Mesh mesh = MeshOf(config, world);
  run.layout = PlanShards(run.spec, mesh, PrecisionOf(config));
  run.options = PlanOptionsOf(config, world, traits);
  const LowerOptions lower = LowerOptionsOf(config, traits.backend);
  struct Part {
    KnownPlan known;
    SemanticGraph forward;
    Program program;  // of the forward alone: all constants are its
  };
  std::vector<Part> parts;
  for (const KnownPlan& known : kKnownPlans) {
    if (std::find(selection.begin(), selection.end(), known.name) == selection.end()) continue;
    SemanticGraph forward = ForwardFor(config, *model, run.layout.precision, known, mesh);
    Program program = Lower(forward, lower);
    parts.push_back({known, std::move(forward), std::move(program)});
  }
  MR_CHECK_EQ(parts.size(), selection.size(), "plans of a run that are known");
  std::vector<const Program*> programs;
  for (const Part& part : parts) programs.push_back(&part.program);
  run.plans.states = PlanStates(run.layout, run.options, programs);
  for (Part& part : parts) {
    if (part.known.trains) {
      // Of the model, whatever part of it a rank computes.
      run.flops =
          TrainFlopsPerToken(ForwardFor(config, *model, run.layout.precision, part.known, Mesh()));
      run.recompute = RecomputeFor(config, part.forward, run, traits);
      part.program = Lower(AddGradients(std::move(part.forward), run.recompute.units), lower);
    }
    StepPlan planned = PlanStep(run.layout, run.plans.states, part.program, run.options,
                                std::string(part.known.name));
    for (const std::string& note : ExecutionNotes(config)) planned.notes.push_back(note);
    if (part.known.trains && run.recompute.searched)
      planned.notes.push_back("recompute auto: " + ToString(run.recompute.counts));
    CheckPlan(planned, mesh, run.options.accumulate);
    run.plans.plans.push_back(std::move(planned));
  }
  CheckSeams(run.plans);
  return run;
}

std::vector<PlanStage> PlanStages(const Config& config, const AssembledRun& run) {
  const std::unique_ptr<Model> model = MakeModel(ModelOptionsOf(config));
  const SemanticGraph graph = AddGradients(
      ForwardFor(config, *model, run.layout.precision, kKnownPlans[0], run.layout.mesh),
      run.recompute.units);
  const StepPlan& plan = run.plans.Of("train");
  const std::array<std::string, kPlanStageNames.size()> texts = {
      ToString(run.spec), ToString(run.layout),
      ToString(graph),    ToString(Lower(graph, LowerOptionsOf(config, run.options.backend))),
      MemoryText(plan),   fmt::format("execution {}\n", plan.execution) + ScheduleText(plan)};
  std::vector<PlanStage> stages;
  for (size_t i = 0; i < texts.size(); ++i)
    stages.push_back({std::string(kPlanStageNames[i]), texts[i]});
  return stages;
}

}  // namespace millrace
