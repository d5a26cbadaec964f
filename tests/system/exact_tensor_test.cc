// Tensor parallelism on integers, where every sum is exact: the bits of the same model without the
// axis (DESIGN.md section 14.3). What is not linear has exact stand-ins (exact_kernels.h); products
// and exchanges are the real ones. Leaving out, doubling or permuting any one exchange shows.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <optional>

#include "comm/host_collectives.h"
#include "comm/local/run_ranks.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/exec/plan_comms.h"
#include "runtime/plan/check/checker.h"
#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/exchange.h"
#include "tests/support/exact_kernels.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

// --- Exchanges that are wrong: as nodes, so that a plan of them is proven and runs like any other.

View Part(View flat, int64_t begin, int64_t numel) {
  flat.offset += begin;
  flat.layout = DenseLayout(flat.layout.dtype, {numel});
  return flat;
}

struct Operands {
  View shard, full;  // flat
  AxisSet axes;
  int64_t ranks = 0;

  View Block(const View& of, int64_t place) const {
    return Part(of, place * shard.layout.numel(), shard.layout.numel());
  }
  // This rank's block.
  View Own(const View& of) const {
    View own = Block(of, 0);
    own.rank_stride = shard.layout.numel();
    own.rank_axes = axes;
    return own;
  }
};

Operands OperandsOf(Lowering& l, const Node& node, bool gathers) {
  Operands o;
  const View in = l.storage().Read(node.inputs[0]), out = l.storage().Write(node.outputs[0]);
  o.shard = Part(gathers ? in : out, 0, (gathers ? in : out).layout.numel());
  o.full = Part(gathers ? out : in, 0, (gathers ? out : in).layout.numel());
  o.axes = Attrs<ExchangeAttrs>(node).axes;
  o.ranks = o.full.layout.numel() / o.shard.layout.numel();
  return o;
}

void Copy(Lowering& l, const Node& node, const View& from, const View& to) {
  CastOp<View> copy;
  copy.x = from;
  copy.out = to;
  l.Push(copy, node, ":copy");
}
void Double(Lowering& l, const Node& node, const View& what) {
  AddOp<View> twice;
  twice.a = twice.b = twice.out = what;
  l.Push(twice, node, ":twice");
}
void Gather(Lowering& l, const Node& node, const Operands& o, const View& full) {
  AllGatherOp<View> gather;
  gather.axes = o.axes;
  gather.shard = o.shard;
  gather.full = full;
  l.Push(gather, node);
}
void Scatter(Lowering& l, const Node& node, const Operands& o, const View& full) {
  ReduceScatterOp<View> scatter;
  scatter.axes = o.axes;
  scatter.shard = o.shard;
  scatter.full = full;
  l.Push(scatter, node);
}
View Temporary(Lowering& l, const Operands& o, const Node& node) {
  return l.storage().Temporary(node.label + ".other", o.full.layout);
}

void LowerNoGather(Lowering& l, const Step& step) {  // everybody's rows are one's own
  const Operands o = OperandsOf(l, *step.node, true);
  for (int64_t r = 0; r < o.ranks; ++r) Copy(l, *step.node, o.shard, o.Block(o.full, r));
}
void LowerTwiceGather(Lowering& l, const Step& step) {
  const Operands o = OperandsOf(l, *step.node, true);
  Gather(l, *step.node, o, o.full);
  Double(l, *step.node, o.full);
}
void LowerTurnedGather(Lowering& l, const Step& step) {
  const Operands o = OperandsOf(l, *step.node, true);
  const View other = Temporary(l, o, *step.node);
  Gather(l, *step.node, o, other);
  for (int64_t r = 0; r < o.ranks; ++r)
    Copy(l, *step.node, o.Block(other, (r + 1) % o.ranks), o.Block(o.full, r));
}
void LowerNoScatter(Lowering& l, const Step& step) {  // the sum is one's own part
  const Operands o = OperandsOf(l, *step.node, false);
  Copy(l, *step.node, o.Own(o.full), o.shard);
}
void LowerTwiceScatter(Lowering& l, const Step& step) {
  const Operands o = OperandsOf(l, *step.node, false);
  Scatter(l, *step.node, o, o.full);
  Double(l, *step.node, o.shard);
}
void LowerTurnedScatter(Lowering& l, const Step& step) {
  const Operands o = OperandsOf(l, *step.node, false);
  const View other = Temporary(l, o, *step.node);
  for (int64_t r = 0; r < o.ranks; ++r)
    Copy(l, *step.node, o.Block(o.full, (r + 1) % o.ranks), o.Block(other, r));
  Scatter(l, *step.node, o, other);
}

const NodeDef kWrongGathers[] = {{.name = "no_gather", .lower = LowerNoGather},
                                 {.name = "twice_gather", .lower = LowerTwiceGather},
                                 {.name = "turned_gather", .lower = LowerTurnedGather}};
const NodeDef kWrongScatters[] = {{.name = "no_scatter", .lower = LowerNoScatter},
                                  {.name = "twice_scatter", .lower = LowerTwiceScatter},
                                  {.name = "turned_scatter", .lower = LowerTurnedScatter}};

// --- Runs

struct Wrong {
  int exchange = 0;  // of those of a graph, forward and backward
  int how = 0;       // of the three above
};

std::vector<Node*> ExchangesIn(SemanticGraph& graph) {
  std::vector<Node*> exchanges;
  for (std::vector<Node>* nodes : {&graph.forward, &graph.backward})
    for (Node& node : *nodes)
      if (node.kind == &kGatherRowsNode || node.kind == &kScatterSumRowsNode)
        exchanges.push_back(&node);
  return exchanges;
}

SemanticGraph GraphOf(const Config& config, const Mesh& mesh) {
  const std::unique_ptr<Model> model = MakeModel(ModelOptionsOf(config));
  const PrecisionPolicy precision = PrecisionOf(config);
  ForwardBuilder builder(
      model->spec(),
      {config.train.micro_batch, config.model.seq_len, config.parallel.tensor_strips},
      precision.compute, precision.norm_params, mesh);
  model->EmitForward(builder, HeadMode::kTrainLoss);
  return AddGradients(std::move(builder).Finish(), config.memory.recompute);
}

AssembledRun Planned(const Trial& trial, const SemanticGraph& graph) {
  AssembledRun run;
  const Mesh mesh = MeshOf(trial.config, trial.world);
  run.spec = MakeModel(ModelOptionsOf(trial.config))->spec();
  run.layout = PlanShards(run.spec, mesh, PrecisionOf(trial.config));
  run.options =
      PlanOptionsOf(trial.config, trial.world, {Backend::kCpu, ScratchBytes(trial.world)});
  const Program program = Lower(graph, LowerOptions{});
  run.plans.states = PlanStates(run.layout, run.options, {&program});
  run.plans.plans = {PlanStep(run.layout, run.plans.states, program, run.options, "train")};
  CheckPlan(run.plans.Of("train"), mesh, run.options.accumulate);
  return run;
}

// Bits of losses, norms, weights and gradients (the moments) after two steps.
std::string BitsOf(const Trial& trial, std::optional<Wrong> wrong = {}) {
  SemanticGraph graph = GraphOf(trial.config, MeshOf(trial.config, trial.world));
  if (wrong) {
    Node& node = *ExchangesIn(graph).at(static_cast<size_t>(wrong->exchange));
    const bool gathers = node.kind == &kGatherRowsNode;
    node.kind = &(gathers ? kWrongGathers : kWrongScatters)[wrong->how];
  }
  const AssembledRun run = Planned(trial, graph);
  std::string bits;
  LocalWorld world(trial.world, {.timeout = std::chrono::seconds(60)});
  RunRanks(world, [&](CommFactory& factory) {
    CommSet comms(factory, run.layout.mesh, CommSharing::kSeparate, CommSpecsOf(run.plans.All()));
    const std::unique_ptr<Device> device = MakeHostDevice();
    Engine engine({device.get(), &ExactKernels(), &comms}, run.layout, run.plans, {});
    InitExactWeights(engine);
    RankContext rank{engine, run, factory.rank(), factory.world_size()};
    std::string mine;
    for (int64_t step = 0; step < 2; ++step) {
      const StepScalars scalars = StepOn(rank, trial.config, step);
      mine += fmt::format("loss {:a} norm {:a} applied {}\n", scalars.loss, scalars.grad_norm,
                          scalars.applied);
    }
    mine += ParamHash(engine) + " " + OptimizerHash(engine);
    if (rank.rank == 0) bits = mine;
  });
  return bits;
}

struct Shape {
  int replicate, shard, tensor;
  int world() const { return replicate * shard * tensor; }
};

// 12 sequences in all, of a model that 2, 3 and 4 ranks can split.
Trial TrialOf(ModelConfig::Family family, const Shape& shape, int64_t accumulate) {
  Trial trial;
  trial.world = shape.world();
  Config& config = trial.config = TinyConfig(family);
  config.model.layers = 2;
  config.model.seq_len = 12;
  config.model.heads = 12;
  config.model.ffn = 24;
  if (family == ModelConfig::Family::kGpt2) {
    config.model.d_model = 12;
  } else {
    config.model.head_dim = 2;
    config.model.kv_heads = 12;
  }
  config.parallel.replicate = shape.replicate;
  config.parallel.tensor = shape.tensor;
  config.train.accumulate = accumulate;
  config.train.micro_batch = 12 / (shape.replicate * shape.shard * accumulate);
  config.optimizer.clip = 0;
  return trial;
}

TEST_CASE("on integers a split model has the bits of the whole one, on every mesh",
          "[exact][tensor]") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama}) {
    const std::string whole = BitsOf(TrialOf(family, {1, 1, 1}, 1));
    for (const Shape& shape : {Shape{1, 2, 1},
                               {2, 2, 1},
                               {1, 1, 2},
                               {1, 1, 3},
                               {1, 1, 4},
                               {1, 2, 2},
                               {2, 1, 2},
                               {1, 1, 6},
                               {1, 2, 3},
                               {3, 1, 2},
                               {2, 2, 2},
                               {1, 4, 2},
                               {1, 2, 4},
                               {2, 1, 4}})
      for (const int64_t accumulate : {1, 3}) {
        if (12 % (shape.replicate * shape.shard * accumulate) != 0) continue;
        INFO("replicate " << shape.replicate << " shard " << shape.shard << " tensor "
                          << shape.tensor << " accumulate " << accumulate);
        Trial trial = TrialOf(family, shape, accumulate);
        CHECK(BitsOf(trial) == whole);
        trial.config.parallel.tensor_strips = shape.tensor > 1 ? 2 : 1;
        trial.config.memory.recompute = Recompute::kBlock;
        trial.config.sharding.grad_sync = ShardingConfig::GradSync::kEvery;
        CHECK(BitsOf(trial) == whole);
      }
  }
}

// Ranks that share a key and value head, on both sides of as many ranks as heads.
TEST_CASE("on integers more ranks than key and value heads have the whole model's bits",
          "[exact][tensor]") {
  for (const int64_t kv_heads : {1, 2, 3, 6}) {
    const auto trial_of = [&](const Shape& shape, int64_t accumulate) {
      Trial trial = TrialOf(ModelConfig::Family::kLlama, shape, accumulate);
      trial.config.model.kv_heads = kv_heads;
      return trial;
    };
    const std::string whole = BitsOf(trial_of({1, 1, 1}, 1));
    for (const Shape& shape :
         {Shape{1, 1, 2}, {1, 1, 3}, {1, 1, 4}, {1, 1, 6}, {1, 2, 2}, {2, 1, 4}, {1, 2, 4}}) {
      if (shape.tensor % kv_heads != 0 && kv_heads % shape.tensor != 0) continue;
      for (const auto concat :
           {ShardingConfig::GradConcat::kDirect, ShardingConfig::GradConcat::kEvery}) {
        INFO("kv_heads " << kv_heads << " replicate " << shape.replicate << " shard " << shape.shard
                         << " tensor " << shape.tensor);
        Trial trial = trial_of(shape, 3);
        if (12 % (shape.replicate * shape.shard * 3) != 0) continue;
        trial.config.sharding.grad_concat = concat;
        CHECK(BitsOf(trial) == whole);
      }
    }
  }
}

TEST_CASE("leaving out, doubling or permuting any exchange changes the bits", "[exact][tensor]") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const Shape& shape : {Shape{1, 1, 2}, {1, 1, 3}}) {
      const Trial trial = TrialOf(family, shape, 1);
      const std::string right = BitsOf(trial);
      SemanticGraph graph = GraphOf(trial.config, MeshOf(trial.config, trial.world));
      const std::vector<Node*> exchanges = ExchangesIn(graph);
      // Of each of 2 blocks' 2 halves: 1 and 1 forward, and 2 gathers and 1 sum backward.
      REQUIRE(exchanges.size() == 2 * 2 * 5);
      for (size_t e = 0; e < exchanges.size(); ++e)
        for (int how = 0; how < 3; ++how) {
          INFO(exchanges[e]->label << " " << kWrongGathers[how].name);
          CHECK(BitsOf(trial, Wrong{static_cast<int>(e), how}) != right);
        }
    }
}

}  // namespace
}  // namespace millrace::test
