#include "runtime/run/assemble.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "kernels/ops/cost.h"
#include "kernels/ops/cuda_float8.h"
#include "runtime/base/error.h"
#include "runtime/plan/check/checker.h"
#include "runtime/plan/check/seams.h"
#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/graph/model_flops.h"
#include "runtime/plan/schedule/allocator_table.h"
#include "runtime/plan/schedule/kept_exchanges.h"
#include "runtime/run/generate/inference_plans.h"
#include "runtime/run/param_groups.h"

namespace millrace {
namespace {

DType DTypeOf(PrecisionConfig::Format format) {
  switch (format) {
    case PrecisionConfig::Format::kFp32:
      return DType::kF32;
    case PrecisionConfig::Format::kBf16:
      return DType::kBF16;
    case PrecisionConfig::Format::kFp16:
      return DType::kF16;
  }
  MR_FAIL("a format of precision that is none: {}", static_cast<int>(format));
}

LossScaling ScalingOf(const PrecisionConfig& precision) {
  if (precision.compute != PrecisionConfig::Format::kFp16) return {};
  const LossScaleConfig& scale = precision.loss_scale;
  return {scale.init_scale, scale.growth_factor, scale.backoff_factor, scale.growth_interval};
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

// What a run can plan, in the order in which it does; "inference" is several.
struct KnownPlan {
  std::string name;
  HeadMode head = HeadMode::kTrainLoss;
  bool trains = false;
  std::optional<CacheShape> cache = {};
  int64_t rows = 0;  // with caches
};
const KnownPlan kTrainPlan{"train", HeadMode::kTrainLoss, true};
const KnownPlan kAgainPlan{std::string(kAgain), HeadMode::kTrainLoss, true};
const KnownPlan kOtherPlans[] = {{"eval", HeadMode::kEvalLoss},
                                 {"generate", HeadMode::kLogits},
                                 {"score", HeadMode::kTokenLosses},
                                 {"score_likeliest", HeadMode::kTokenScores}};

std::vector<KnownPlan> Selected(const Config& config, const ModelShape& shape, Backend backend,
                                const PlanSelection& selection) {
  const auto is_selected = [&](std::string_view name) {
    return std::find(selection.begin(), selection.end(), name) != selection.end();
  };
  // On GPUs training and scoring under it change, too; on CPUs it is about plans with caches alone.
  const std::string why_not = backend == Backend::kCpu ? "" : WhyNotExact(config, shape, backend);
  MR_REQUIRE(ErrorCode::kConfig, why_not.empty(), "{}", why_not);
  std::vector<KnownPlan> selected;
  size_t found = 0;
  const auto add = [&](const KnownPlan& known) {
    if (!is_selected(known.name)) return;
    const bool scores =
        known.head == HeadMode::kTokenLosses || known.head == HeadMode::kTokenScores;
    MR_REQUIRE(
        ErrorCode::kConfig, !scores || config.precision.linear != LinearEncoding::kFp8Tensor,
        "precision.linear is fp8_tensor, whose scales make the score of a text depend on the "
        "texts beside it; fp8_block and compute are allowed");
    selected.push_back(known);
    ++found;
  };
  add(kTrainPlan);
  for (const KnownPlan& known : kOtherPlans) add(known);
  if (is_selected(kInferencePlans)) {
    ++found;
    for (const InferencePlan& plan : InferencePlansOf(config, shape, backend))
      selected.push_back({plan.name, HeadMode::kNextLogits, false, plan.cache, plan.rows});
  }
  MR_CHECK_EQ(found, selection.size(), "plans of a run that are known");
  return selected;
}

// Of the training plan, receive buffers are as small as was asked for; what others compute cannot
// be undone.
ModelOptions OptionsFor(const Config& config, const KnownPlan& known) {
  ModelOptions options = ModelOptionsOf(config);
  if (known.name != kTrainPlan.name) options.receive_capacity = 0;
  return options;
}

bool MayOverflow(const Program& program) {
  return std::any_of(program.buffers.begin(), program.buffers.end(),
                     [](const ProgramBuffer& b) { return b.role == ProgramRole::kOverflow; });
}

SemanticGraph ForwardFor(const Config& config, const Model& model, const PrecisionPolicy& precision,
                         const KnownPlan& known, const Mesh& mesh) {
  const int64_t batch = known.head == HeadMode::kLogits ? 1 : config.train.micro_batch;
  const BatchShape shape =
      known.cache ? BatchShape{1, known.rows}
                  : BatchShape{batch, config.model.seq_len, config.parallel.tensor_strips};
  ForwardBuilder builder(model.spec(), shape, precision.compute, precision.norm_params, mesh);
  builder.EncodeLinears(config.precision.linear);
  if (known.cache) builder.KeepCaches(*known.cache);
  model.EmitForward(builder, known.head);
  return std::move(builder).Finish();
}

// Elements of the residual stream of a microbatch whose products leave room on a GPU. Measured on
// H200s: GPT-2 30M and 124M at 1024 and 4096 tokens (3.1 M elements) gain 1% on one GPU and 4 to 6%
// on two; 124M at 65536 tokens (50 M) neither gains nor loses.
constexpr int64_t kSmallActivation = int64_t{1} << 23;

bool WeightsBeside(const Config& config, Backend backend) {
  return config.execution.overlap_weight_gradients.value_or(
      backend == Backend::kCuda &&
      config.train.micro_batch * config.model.seq_len * config.model.d_model <= kSmallActivation);
}

LowerOptions LowerOptionsOf(const Config& config, Backend backend) {
  LowerOptions options;
  options.backend = backend;
  options.deterministic = config.execution.deterministic;
  options.gather = config.precision.gather;
  options.in_order = backend == Backend::kCuda && config.inference.exact.value_or(false);
  options.weights_beside = WeightsBeside(config, backend);
  return options;
}

RecomputeChoice RecomputeFor(const Config& config, const SemanticGraph& forward,
                             const AssembledRun& run, const BackendTraits& traits) {
  const LowerOptions lower = LowerOptionsOf(config, traits.backend);
  const RecomputeInput input{run.layout, run.plans.states, forward,
                             lower,      run.options,      traits.device_arena_bytes};
  return KeepExchanges(input, config.memory.recompute == Recompute::kAuto
                                  ? ChooseRecompute(input)
                                  : GivenRecompute(forward, config.memory.recompute));
}

// Other models train and are evaluated in fp16 on GPUs; what generates with caches is WhyNoCaches'.
std::string WhyNoFloat16Model(const Config& config, Backend backend) {
  if (config.precision.compute != PrecisionConfig::Format::kFp16 || backend == Backend::kCpu)
    return "";
  for (const auto& [branch, name] : {std::pair{'E', "experts"}, {'M', "mixers"}})
    if (config.model.Has(branch))
      return fmt::format(
          "precision.compute is fp16, in which GPUs have no {} yet, and the model has some "
          "(model.family or a pattern); bf16 and fp32 are allowed, or execution.backend=cpu",
          name);
  return "";
}

// Which heads are too wide, and which rows linears take, depends on whose kernels run them, so that
// the configuration alone does not know.
std::unique_ptr<Model> ModelFor(const Config& config, Backend backend) {
  const int64_t head_dim = config.model.HeadDim(), most = MostHeadDim(backend);
  MR_REQUIRE(ErrorCode::kConfig, !config.model.Has('*') || head_dim <= most,
             "{} is {}; at most {} on {}",
             config.model.head_dim ? "model.head_dim" : "model.d_model / model.heads", head_dim,
             most, backend == Backend::kCpu ? "CPUs" : "GPUs");
  for (const std::string& why :
       {WhyNoFloat16Model(config, backend), WhyNoFloat8Rows(config, backend)})
    MR_REQUIRE(ErrorCode::kConfig, why.empty(), "{}", why);
  std::unique_ptr<Model> model = MakeModel(ModelOptionsOf(config));
  CheckGroups(config.optimizer, model->spec());
  return model;
}

// Of the plan that has room for all rows: the training plan's, or more where that brings it into
// the training plan's arena. Bits do not depend on it.
RecomputeChoice RecomputeAgain(const Config& config, const SemanticGraph& forward,
                               const AssembledRun& run, const BackendTraits& traits) {
  const LowerOptions lower = LowerOptionsOf(config, traits.backend);
  const int64_t arena = run.plans.Of("train").arena_bytes;
  PlanOptions options = run.options;
  options.budget_bytes = 0;
  if (options.reshard == Reshard::kAuto) options.reshard = Reshard::kAfterForward;
  const StepPlan same = PlanStep(run.layout, run.plans.states,
                                 Lower(AddGradients(forward, run.recompute.units), lower), options,
                                 std::string(kAgain));
  if (same.arena_bytes <= arena) return run.recompute;
  return ChooseRecompute({run.layout, run.plans.states, forward, lower, options, arena});
}

// What the training plan of an assembled run was made from.
SemanticGraph TrainingGraph(const Config& config, const AssembledRun& run) {
  const std::unique_ptr<Model> model = MakeModel(ModelOptionsOf(config));
  return AddGradients(ForwardFor(config, *model, run.layout.precision, kTrainPlan, run.layout.mesh),
                      run.recompute.units);
}

// What the plan for batches that receive buffers had no room for takes, said with the training
// plan.
void NoteAgain(const Config& config, RunPlans* plans) {
  const StepPlan* const again = plans->Find(kAgain);
  if (again == nullptr) return;
  StepPlan& train = plans->plans.front();
  train.notes.push_back(fmt::format(
      "model.moe.receive_capacity={}: a step that overflows is skipped, its batch run again with "
      "room for all rows, in an arena of {} bytes; this one has {}",
      *config.model.moe.receive_capacity, again->arena_bytes, train.arena_bytes));
}

}  // namespace

std::string WhyNoFloat8Rows(const Config& config, Backend backend) {
  const int64_t context = config.parallel.context, rows = config.model.seq_len / context;
  if (config.precision.linear == LinearEncoding::kCompute || backend == Backend::kCpu ||
      rows % cuda::kFloat8Multiple == 0)
    return "";
  return fmt::format(
      "model.seq_len is {} and parallel.context {}, so that a rank has {} rows of a sequence; "
      "precision.linear={} on GPUs takes multiples of {}; or precision.linear=compute",
      config.model.seq_len, context, rows, Name(config.precision.linear), cuda::kFloat8Multiple);
}

PrecisionPolicy PrecisionOf(const Config& config) {
  PrecisionPolicy p;
  p.compute = DTypeOf(config.precision.compute);
  p.norm_params = config.precision.norms == PrecisionConfig::Norms::kFp32 ? DType::kF32 : p.compute;
  p.grad_accumulate = DTypeOf(config.precision.grad_accumulate);
  p.grad_wire = DTypeOf(config.precision.grad_wire);
  p.moments = DTypeOf(config.optimizer.moments);
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
  if (config.data.MasksDocuments())
    notes.push_back(
        "data.document_mask: on a GPU attention runs on kernels of our own, which pass over other "
        "documents, not on cuDNN's");
  if (config.inference.exact.value_or(false))
    notes.push_back(
        "inference.exact: on a GPU linears, logits and attention of the forward run on kernels of "
        "our own, in an order that caches have, too; none of them is tuned");
  if (config.model.BalancedGate())
    notes.push_back(
        "model.moe.gate=balanced: a fixed pattern chooses experts, not the router; for benchmarks");
  return notes;
}

MuonHyper MuonOf(const OptimizerConfig& optimizer) {
  const MuonConfig& muon = optimizer.muon;
  return {.momentum = muon.momentum,
          .nesterov = muon.nesterov,
          .steps = static_cast<int>(muon.ns_steps),
          .coefficients = {muon.ns_linear, muon.ns_cubic, muon.ns_quintic},
          .eps = muon.eps,
          .adjust = muon.adjust_lr,
          .lr_scale = muon.lr ? *muon.lr / optimizer.lr : 1,
          .weight_decay = optimizer.MuonWeightDecay()};
}

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
  o.overlap_weight_gradients = WeightsBeside(config, traits.backend);
  o.adamw = {config.optimizer.betas[0], config.optimizer.betas[1], config.optimizer.eps,
             config.optimizer.weight_decay};
  o.muon = MuonOf(config.optimizer);
  o.groups = ParamGroupsOf(config.optimizer);
  o.clip = config.optimizer.clip;
  o.scaling = ScalingOf(config.precision);
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
             "parallel.replicate {} x parallel.shard {} x parallel.context {} x parallel.expert {} "
             "x parallel.tensor {} is {}, but there are {} ranks",
             mesh.Size(Axis::kReplicate), mesh.Size(Axis::kShard), mesh.Size(Axis::kContext),
             mesh.Size(Axis::kExpert), mesh.Size(Axis::kTensor), mesh.world(), world);
  return mesh;
}

ExchangeNeeds ExchangeNeedsOf(const Config& config) {
  ExchangeNeeds needs{config.optimizer.HasMuon(), config.parallel.experts_over_tensor, {}};
  if (config.model.Has('E')) switch (config.model.moe.aux_loss) {
      case AuxLossKind::kNone:
        break;
      case AuxLossKind::kSwitch:
      case AuxLossKind::kPooled:
        needs.router_sums = AxisSet::All() - Axis::kPipe;
        break;
      case AuxLossKind::kSequence:  // over tensor where its ranks have no whole sequences
        needs.router_sums = Axis::kContext;
        if (config.train.micro_batch % (config.parallel.tensor * config.parallel.tensor_strips))
          needs.router_sums = needs.router_sums | Axis::kTensor;
        break;
    }
  return needs;
}

Program LowerTraining(const Config& config, int world, const BackendTraits& traits,
                      Exchanged exchanged) {
  const std::unique_ptr<Model> model = ModelFor(config, traits.backend);
  SemanticGraph forward =
      ForwardFor(config, *model, PrecisionOf(config), kTrainPlan, MeshOf(config, world));
  std::vector<UnitRecompute> units = RecomputeOf(forward, config.memory.recompute);
  if (exchanged == Exchanged::kKept) units = KeepingAll(forward, std::move(units));
  return Lower(AddGradients(std::move(forward), units), LowerOptionsOf(config, traits.backend));
}

Drafted DraftTraining(const Config& config, int world, const BackendTraits& traits,
                      Exchanged exchanged) {
  const Mesh mesh = MeshOf(config, world);
  const ShardLayout layout =
      PlanShards(ModelFor(config, traits.backend)->spec(), mesh, PrecisionOf(config));
  const PlanOptions options = PlanOptionsOf(config, world, traits);
  const Program program = LowerTraining(config, world, traits, exchanged);
  return {mesh, DraftStep(layout, PlanStates(layout, options, {&program}), program, options,
                          kTrainPlan.name)};
}

AssembledRun Assemble(const Config& config, int world, const BackendTraits& traits,
                      const PlanSelection& selection) {
  AssembledRun run;
  run.spec = ModelFor(config, traits.backend)->spec();
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
  const auto add = [&](const KnownPlan& known) {
    SemanticGraph forward = ForwardFor(config, *MakeModel(OptionsFor(config, known)),
                                       run.layout.precision, known, mesh);
    LowerOptions options = lower;
    // Once for all tokens of an era, weights are gathered as they are.
    if (known.cache) options.gather = WeightGather::kCompute;
    Program program = Lower(forward, options);
    parts.push_back({known, std::move(forward), std::move(program)});
  };
  for (const KnownPlan& known :
       Selected(config, ModelOptionsOf(config), traits.backend, selection)) {
    add(known);
    if (known.trains && MayOverflow(parts.back().program)) add(kAgainPlan);
  }
  std::vector<const Program*> programs;
  for (const Part& part : parts) programs.push_back(&part.program);
  run.plans.states = PlanStates(run.layout, run.options, programs);
  for (Part& part : parts) {
    if (part.known.name == kAgain) {
      const RecomputeChoice choice = RecomputeAgain(config, part.forward, run, traits);
      part.program = Lower(AddGradients(std::move(part.forward), choice.units), lower);
    } else if (part.known.trains) {
      // Of the model, whatever part of it a rank computes.
      run.flops = TrainFlopsPerToken(ForwardFor(config, *MakeModel(OptionsFor(config, part.known)),
                                                run.layout.precision, part.known, Mesh()));
      run.recompute = RecomputeFor(config, part.forward, run, traits);
      part.program = Lower(AddGradients(std::move(part.forward), run.recompute.units), lower);
    }
    StepPlan planned =
        PlanStep(run.layout, run.plans.states, part.program, run.options, part.known.name);
    for (const std::string& note : ExecutionNotes(config)) planned.notes.push_back(note);
    if (part.known.trains)
      for (const std::string& note : GroupNotes(config.optimizer, run.spec))
        planned.notes.push_back(note);
    if (part.known.trains && run.recompute.searched)
      planned.notes.push_back("recompute auto: " + ToString(run.recompute.counts));
    if (part.known.name == kTrainPlan.name && run.recompute.exchanges.kept > 0)
      planned.notes.push_back("exchanges kept: " + ToString(run.recompute.exchanges));
    CheckPlan(planned, mesh, run.options.accumulate);
    run.plans.plans.push_back(std::move(planned));
  }
  NoteAgain(config, &run.plans);
  CheckSeams(run.plans, run.layout);
  return run;
}

AllocatorTable CompareAllocators(const Config& config, const AssembledRun& run) {
  const Program program =
      Lower(TrainingGraph(config, run), LowerOptionsOf(config, run.options.backend));
  return CompareAllocators(run.layout, run.plans.states, program, run.options,
                           run.plans.Of("train").reshard);
}

std::vector<PlanStage> PlanStages(const Config& config, const AssembledRun& run) {
  const SemanticGraph graph = TrainingGraph(config, run);
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
