// Context parallelism on integers, where every sum is exact: the bits of the same model without the
// axis (DESIGN.md section 14.3), with tensor and the data axes, too. What is not linear has exact
// stand-ins (exact_kernels.h); products and exchanges are the real ones. Leaving out, doubling or
// permuting any one exchange of keys, values or their gradients shows.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <functional>

#include "comm/host_collectives.h"
#include "comm/local/run_ranks.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/exec/plan_comms.h"
#include "runtime/plan/check/checker.h"
#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lower.h"
#include "tests/support/exact_kernels.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

struct Shape {
  int replicate, shard, context, tensor;
  int world() const { return replicate * shard * context * tensor; }
};

// 12 sequences of 24 in all.
Trial TrialOf(ModelConfig::Family family, const Shape& shape, int64_t accumulate) {
  Trial trial;
  trial.world = shape.world();
  Config& config = trial.config = TinyConfig(family);
  config.model.layers = 2;
  config.model.seq_len = 24;
  config.model.heads = 4;
  config.model.ffn = 24;
  if (family == ModelConfig::Family::kGpt2) {
    config.model.d_model = 12;
  } else {
    config.model.head_dim = 2;
    config.model.kv_heads = 2;
  }
  config.parallel.replicate = shape.replicate;
  config.parallel.context = shape.context;
  config.parallel.tensor = shape.tensor;
  config.train.accumulate = accumulate;
  config.train.micro_batch = 12 / (shape.replicate * shape.shard * accumulate);
  config.optimizer.clip = 0;
  return trial;
}

using Change = std::function<void(Program&)>;

Program ProgramOf(const Trial& trial) {
  const Config& config = trial.config;
  const std::unique_ptr<Model> model = MakeModel(ModelOptionsOf(config));
  const PrecisionPolicy precision = PrecisionOf(config);
  ForwardBuilder builder(model->spec(), {config.train.micro_batch, config.model.seq_len},
                         precision.compute, precision.norm_params, MeshOf(config, trial.world));
  model->EmitForward(builder, HeadMode::kTrainLoss);
  return Lower(AddGradients(std::move(builder).Finish(), config.memory.recompute), LowerOptions{});
}

AssembledRun Planned(const Trial& trial, const Program& program) {
  AssembledRun run;
  const Mesh mesh = MeshOf(trial.config, trial.world);
  run.spec = MakeModel(ModelOptionsOf(trial.config))->spec();
  run.layout = PlanShards(run.spec, mesh, PrecisionOf(trial.config));
  run.options =
      PlanOptionsOf(trial.config, trial.world, {Backend::kCpu, ScratchBytes(trial.world)});
  run.plans.states = PlanStates(run.layout, run.options, {&program});
  run.plans.plans = {PlanStep(run.layout, run.plans.states, program, run.options, "train")};
  CheckPlan(run.plans.Of("train"), mesh, run.options.accumulate);
  return run;
}

// Bits of losses, norms, weights and gradients (the moments) after two steps.
std::string BitsOf(const Trial& trial, const Change& change = {}) {
  Program program = ProgramOf(trial);
  if (change) change(program);
  const AssembledRun run = Planned(trial, program);
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

TEST_CASE("on integers split sequences have the bits of whole ones, on every mesh",
          "[exact][context]") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama}) {
    const std::string whole = BitsOf(TrialOf(family, {1, 1, 1, 1}, 1));
    for (const Shape& shape : {Shape{1, 1, 2, 1},
                               {1, 1, 3, 1},
                               {1, 1, 4, 1},
                               {1, 1, 6, 1},
                               {1, 2, 2, 1},
                               {2, 1, 2, 1},
                               {2, 2, 2, 1},
                               {1, 2, 3, 1},
                               {3, 1, 2, 1},
                               {1, 2, 4, 1},
                               {1, 1, 2, 2},
                               {1, 1, 3, 2},
                               {1, 2, 2, 2},
                               {2, 1, 2, 2},
                               {1, 1, 4, 2}})
      for (const int64_t accumulate : {1, 3}) {
        if (12 % (shape.replicate * shape.shard * accumulate) != 0) continue;
        INFO("replicate " << shape.replicate << " shard " << shape.shard << " context "
                          << shape.context << " tensor " << shape.tensor << " accumulate "
                          << accumulate);
        Trial trial = TrialOf(family, shape, accumulate);
        CHECK(BitsOf(trial) == whole);
        trial.config.memory.recompute = Recompute::kBlock;
        trial.config.sharding.grad_sync = ShardingConfig::GradSync::kEvery;
        CHECK(BitsOf(trial) == whole);
      }
  }
}

// --- Exchanges that are wrong

enum class How { kLeftOut, kTwice, kTurned };
constexpr const char* kHow[] = {"left out", "twice", "turned"};

View Block(const View& flat, int64_t place, int64_t numel) {
  View block = flat;
  block.offset += place * numel;
  block.layout = DenseLayout(flat.layout.dtype, {numel});
  return block;
}

// This rank's.
View OwnBlock(const View& flat, int64_t numel) {
  View own = Block(flat, 0, numel);
  own.rank_stride = numel;
  own.rank_axes = Axis::kContext;
  return own;
}

class Spoiler {
 public:
  Spoiler(Program& program, int64_t ranks, How how) : program_(program), ranks_(ranks), how_(how) {}

  void Spoil(std::vector<ProgramOp>& ops, size_t at) {
    const ProgramOp exchange = ops[at];
    like_ = &exchange;
    if (const auto* gather = std::get_if<AllGatherOp<View>>(&exchange.op))
      SpoilGather(*gather);
    else
      SpoilScatter(std::get<ReduceScatterOp<View>>(exchange.op));
    ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(at));
    ops.insert(ops.begin() + static_cast<std::ptrdiff_t>(at), out_.begin(), out_.end());
  }

 private:
  // In place: this rank's keys lie at its block.
  void SpoilGather(const AllGatherOp<View>& gather) {
    const int64_t numel = gather.full.layout.numel() / ranks_;
    const View other = Temporary(gather.full.layout);
    switch (how_) {
      case How::kLeftOut:
        for (int64_t r = 0; r < ranks_; ++r)
          Copy(OwnBlock(gather.full, numel), Block(other, r, numel));
        return Copy(other, gather.full);
      case How::kTwice:
        Emit(gather);
        return Double(gather.full);
      case How::kTurned:
        Emit(gather);
        for (int64_t r = 0; r < ranks_; ++r)
          Copy(Block(gather.full, (r + 1) % ranks_, numel), Block(other, r, numel));
        return Copy(other, gather.full);
    }
  }
  void SpoilScatter(ReduceScatterOp<View> scatter) {
    const int64_t numel = scatter.shard.layout.numel();
    const View other = Temporary(scatter.full.layout);
    switch (how_) {
      case How::kLeftOut:
        return Copy(OwnBlock(scatter.full, numel), scatter.shard);
      case How::kTwice:
        Emit(scatter);
        return Double(scatter.shard);
      case How::kTurned:
        for (int64_t r = 0; r < ranks_; ++r)
          Copy(Block(scatter.full, (r + 1) % ranks_, numel), Block(other, r, numel));
        scatter.full = other;
        return Emit(scatter);
    }
  }

  template <class Op>
  void Emit(const Op& op) {
    out_.push_back(
        {.op = op, .label = like_->label, .unit = like_->unit, .recomputed = like_->recomputed});
  }
  void Copy(const View& from, const View& to) {
    CastOp<View> copy;
    copy.x = from;
    copy.out = to;
    Emit(copy);
  }
  void Double(const View& what) {
    AddOp<View> twice;
    twice.a = twice.b = twice.out = what;
    Emit(twice);
  }
  View Temporary(const Layout& layout) {
    program_.buffers.push_back(
        {.name = "other", .role = ProgramRole::kActivation, .layout = layout});
    View view;
    view.buffer = {static_cast<int32_t>(program_.buffers.size()) - 1};
    view.layout = layout;
    return view;
  }

  Program& program_;
  int64_t ranks_;
  How how_;
  const ProgramOp* like_ = nullptr;
  std::vector<ProgramOp> out_;
};

std::vector<size_t> ExchangesIn(const std::vector<ProgramOp>& ops) {
  std::vector<size_t> found;
  for (size_t i = 0; i < ops.size(); ++i)
    if (IsCollective(ops[i].op)) found.push_back(i);
  return found;
}

TEST_CASE("leaving out, doubling or permuting any exchange of keys changes the bits",
          "[exact][context]") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const int context : {2, 3}) {
      const Trial trial = TrialOf(family, {1, 1, context, 1}, 1);
      const std::string right = BitsOf(trial);
      const Program program = ProgramOf(trial);
      for (const bool backward : {false, true}) {
        const auto& ops = backward ? program.backward : program.forward;
        const std::vector<size_t> exchanges = ExchangesIn(ops);
        REQUIRE(exchanges.size() == (backward ? 4 : 2));  // of two blocks
        for (const size_t at : exchanges)
          for (const How how : {How::kLeftOut, How::kTwice, How::kTurned}) {
            INFO(ops[at].label << " " << kHow[static_cast<int>(how)]);
            CHECK(BitsOf(trial, [&](Program& changed) {
                    Spoiler(changed, context, how)
                        .Spoil(backward ? changed.backward : changed.forward, at);
                  }) != right);
          }
      }
    }
}

}  // namespace
}  // namespace millrace::test
