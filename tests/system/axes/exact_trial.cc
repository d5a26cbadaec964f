#include "tests/system/axes/exact_trial.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "comm/host_collectives.h"
#include "comm/local/run_ranks.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/exec/agreement/plan_comms.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/plan/check/checker.h"
#include "runtime/plan/graph/gradients.h"
#include "tests/support/exact_kernels.h"

namespace millrace::test {

SemanticGraph ForwardOf(const Trial& trial) {
  const Config& config = trial.config;
  const std::unique_ptr<Model> model = MakeModel(ModelOptionsOf(config));
  const PrecisionPolicy precision = PrecisionOf(config);
  ForwardBuilder builder(
      model->spec(),
      {config.train.micro_batch, config.model.seq_len, config.parallel.tensor_strips},
      precision.compute, precision.norm_params, MeshOf(config, trial.world));
  model->EmitForward(builder, HeadMode::kTrainLoss);
  return std::move(builder).Finish();
}

namespace {

Program ProgramOf(const Trial& trial) {
  return Lower(AddGradients(ForwardOf(trial), trial.config.memory.recompute), LowerOptions{});
}

AssembledRun Planned(const Trial& trial, const Program& program, bool spoiled) {
  AssembledRun run;
  const Mesh mesh = MeshOf(trial.config, trial.world);
  run.spec = MakeModel(ModelOptionsOf(trial.config))->spec();
  run.layout = PlanShards(run.spec, mesh, PrecisionOf(trial.config));
  run.options =
      PlanOptionsOf(trial.config, trial.world, {Backend::kCpu, ScratchBytes(trial.world)});
  run.plans.states = PlanStates(run.layout, run.options, {&program});
  run.plans.plans = {PlanStep(run.layout, run.plans.states, program, run.options, "train")};
  // Spoiled exchanges are as safe to run as right ones; that they move other rows is found, too.
  for (const Violation& found : FindViolations(run.plans.Of("train"), mesh, run.options.accumulate))
    MR_CHECK(spoiled && found.kind == ViolationKind::kRows, "{}", found.message);
  return run;
}

// --- Exchanges that are wrong: as ops, so that a plan of them is proven and runs like any other.

enum class Wrong { kLeftOut, kTwice, kTurned };
constexpr const char* kWrong[] = {"left out", "twice", "turned"};

View Flat(View view) {
  view.layout = DenseLayout(view.layout.dtype, {view.layout.numel()});
  return view;
}

class Spoiler {
 public:
  Spoiler(Program& program, const Mesh& mesh, Wrong wrong)
      : program_(program), mesh_(mesh), wrong_(wrong) {}

  void Spoil(std::vector<ProgramOp>& ops, size_t at) {
    const ProgramOp exchange = ops[at];
    like_ = &exchange;
    if (const auto* gather = std::get_if<AllGatherOp<View>>(&exchange.op))
      SpoilGather(*gather);
    else if (const auto* pieces = std::get_if<AllToAllOp<View>>(&exchange.op))
      SpoilAllToAll(*pieces);
    else
      SpoilScatter(std::get<ReduceScatterOp<View>>(exchange.op));
    const auto place = ops.begin() + static_cast<std::ptrdiff_t>(at);
    ops.insert(ops.erase(place), out_.begin(), out_.end());
  }

 private:
  // Through another buffer, since a rank's rows may lie where they are gathered.
  void SpoilGather(const AllGatherOp<View>& gather) {
    const View full = Flat(gather.full), other = Temporary(full.layout);
    const int64_t ranks = mesh_.Size(gather.axes), numel = full.layout.numel() / ranks;
    const View own = gather.shard ? Flat(gather.shard) : OwnBlock(full, gather.axes, numel);
    if (wrong_ != Wrong::kLeftOut) Emit(gather);
    if (wrong_ == Wrong::kTwice) return Double(full);
    for (int64_t r = 0; r < ranks; ++r)  // left out: everybody's rows are one's own
      Copy(wrong_ == Wrong::kLeftOut ? own : Block(full, (r + 1) % ranks, numel),
           Block(other, r, numel));
    Copy(other, full);
  }

  void SpoilScatter(ReduceScatterOp<View> scatter) {
    const View full = Flat(scatter.full), shard = Flat(scatter.shard);
    const int64_t numel = shard.layout.numel(), ranks = full.layout.numel() / numel;
    if (wrong_ == Wrong::kLeftOut)  // the sum is one's own part
      return Copy(OwnBlock(full, scatter.axes, numel), shard);
    if (wrong_ == Wrong::kTurned) {
      const View other = Temporary(full.layout);
      for (int64_t r = 0; r < ranks; ++r)
        Copy(Block(full, (r + 1) % ranks, numel), Block(other, r, numel));
      scatter.full = other;
    }
    Emit(scatter);
    if (wrong_ == Wrong::kTwice) Double(shard);
  }

  // Of counts, which are no numbers to add to, everybody gets those that were meant for the first.
  void SpoilAllToAll(const AllToAllOp<View>& exchange) {
    const View sent = Flat(exchange.sent), received = Flat(exchange.received);
    const int64_t ranks = mesh_.Size(exchange.axes), numel = sent.layout.numel() / ranks;
    if (sent.layout.dtype == DType::kI32) {
      AllGatherOp<View> first;
      first.axes = exchange.axes;
      first.shard = Block(sent, 0, numel);
      first.full = received;
      return Emit(first);
    }
    if (wrong_ == Wrong::kLeftOut) return Copy(sent, received);
    Emit(exchange);
    if (wrong_ == Wrong::kTwice) return Double(received);
    const View other = Temporary(received.layout);
    for (int64_t r = 0; r < ranks; ++r)
      Copy(Block(received, (r + 1) % ranks, numel), Block(other, r, numel));
    Copy(other, received);
  }

  static View Block(View flat, int64_t place, int64_t numel) {
    flat.offset += place * numel;
    flat.layout = DenseLayout(flat.layout.dtype, {numel});
    return flat;
  }
  static View OwnBlock(const View& flat, AxisSet axes, int64_t numel) {
    View own = Block(flat, 0, numel);
    own.rank_stride = numel;
    own.rank_axes = axes;
    return own;
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
  const Mesh& mesh_;
  Wrong wrong_;
  const ProgramOp* like_ = nullptr;
  std::vector<ProgramOp> out_;
};

std::vector<size_t> ExchangesIn(const std::vector<ProgramOp>& ops) {
  std::vector<size_t> found;
  for (size_t i = 0; i < ops.size(); ++i)
    if (IsCollective(ops[i].op)) found.push_back(i);
  return found;
}

}  // namespace

Trial ExactTrial(ModelConfig::Family family, const ExactShape& shape, int64_t accumulate,
                 const ExactSizes& sizes) {
  Trial trial;
  trial.world = shape.world();
  Config& config = trial.config = TinyConfig(family);
  config.model.layers = 2;
  config.model.seq_len = sizes.seq_len;
  config.model.heads = sizes.heads;
  config.model.ffn = 24;
  if (family == ModelConfig::Family::kGpt2) {
    config.model.d_model = 12;
  } else {
    config.model.head_dim = 2;
    config.model.kv_heads = sizes.kv_heads;
  }
  config.parallel.replicate = shape.replicate;
  config.parallel.context = shape.context;
  config.parallel.tensor = shape.tensor;
  config.parallel.expert = shape.expert;
  config.train.accumulate = accumulate;
  config.train.micro_batch = 12 / (shape.replicate * shape.shard * shape.expert * accumulate);
  config.optimizer.clip = 0;
  return trial;
}

std::string ExactBits(const Trial& trial, const std::function<void(Program&)>& change) {
  Program program = ProgramOf(trial);
  if (change) change(program);
  const AssembledRun run = Planned(trial, program, static_cast<bool>(change));
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

void CheckEveryExchangeShows(const Trial& trial, size_t forward, size_t backward) {
  const std::string right = ExactBits(trial);
  const Program program = ProgramOf(trial);
  const Mesh mesh = MeshOf(trial.config, trial.world);
  for (const auto& [phase, count] :
       {std::pair{&Program::forward, forward}, std::pair{&Program::backward, backward}}) {
    const std::vector<ProgramOp>& ops = program.*phase;
    const std::vector<size_t> exchanges = ExchangesIn(ops);
    REQUIRE(exchanges.size() == count);
    for (const size_t at : exchanges)
      for (const Wrong wrong : {Wrong::kLeftOut, Wrong::kTwice, Wrong::kTurned}) {
        INFO(ops[at].label << " " << kWrong[static_cast<int>(wrong)]);
        const auto spoil = [&, in = phase](Program& changed) {
          Spoiler(changed, mesh, wrong).Spoil(changed.*in, at);
        };
        CHECK(ExactBits(trial, spoil) != right);
      }
  }
}

}  // namespace millrace::test
