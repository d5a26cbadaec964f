// Plan after plan: states that nobody has defined, that another plan has run over, or that lie
// elsewhere.
#include "runtime/plan/check/seams.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "runtime/base/error.h"
#include "runtime/plan/check/checker.h"
#include "runtime/plan/schedule/step_builder.h"
#include "tests/support/plan_case.h"

namespace millrace {
namespace {

using Catch::Matchers::Contains;
using test::PlanCase;

// Train, eval and generate of one model, over states that were made from all three.
RunPlans RunOf(PlanCase c) {
  c.options.shape = {.batch = 2, .seq = c.model.seq_len};
  const ShardLayout layout = test::LayoutOf(c);
  std::vector<Program> programs;
  for (const char* name : {"train", "eval", "generate"}) {
    c.kind = name;
    programs.push_back(test::ProgramOf(c));
  }
  RunPlans run;
  run.states = PlanStates(layout, c.options, {&programs[0], &programs[1], &programs[2]});
  for (size_t p = 0; p < programs.size(); ++p)
    run.plans.push_back(PlanStep(layout, run.states, programs[p], c.options,
                                 p == 0   ? "train"
                                 : p == 1 ? "eval"
                                          : "generate"));
  return run;
}

PlanCase Llama() {
  PlanCase c;
  c.model = test::TinyLlama(2);
  c.mesh = {1, 2};
  c.precision = test::Mixed(DType::kBF16, DType::kF32, DType::kF32);
  c.options.downcast = Downcast::kAfterUpdate;
  return c;
}

std::string FirstOf(const RunPlans& run, const PlanCase& c = Llama()) {
  const Violations found = FindSeamViolations(run, test::LayoutOf(c));
  return found.empty() ? "none" : found.front().message;
}

StepPlan& PlanIn(RunPlans& run, const std::string& name) {
  return *std::find_if(run.plans.begin(), run.plans.end(),
                       [&](const StepPlan& plan) { return plan.name == name; });
}

TEST_CASE("the plans of a run follow each other in any order", "[plan][seams]") {
  for (const bool llama : {false, true})
    for (const Downcast downcast : {Downcast::kPerGather, Downcast::kAfterUpdate})
      for (const Mesh mesh : {Mesh{1, 1}, Mesh{2, 2}}) {
        PlanCase c = Llama();
        if (!llama) c.model = test::TinyGpt2(2);
        c.mesh = mesh;
        c.options.downcast = downcast;
        c.options.comm_scratch_bytes = 512;
        INFO(ToString(c));
        const RunPlans run = RunOf(c);
        REQUIRE(FirstOf(run, c) == "none");
        for (const StepPlan& plan : run.plans) CheckPlan(plan, c.mesh, 1);
      }
}

PlanCase InFp8() {
  PlanCase c = Llama();
  c.model = test::TinyGpt2(2);  // with biases
  c.linears = LinearEncoding::kFp8Block;
  c.gather = WeightGather::kLinear;
  return c;
}

TEST_CASE("so they do where weights are gathered in FP8, each state of which a prologue forms",
          "[plan][seams]") {
  for (const Mesh mesh : {Mesh{1, 1}, Mesh{2, 2}}) {
    PlanCase c = InFp8();
    c.mesh = mesh;
    const RunPlans right = RunOf(c);
    REQUIRE(FirstOf(right, c) == "none");
    for (const StepPlan& plan : right.plans) CheckPlan(plan, c.mesh, 1);
    REQUIRE_FALSE(right.states.Find("compute/h.0"));
    for (const char* name : {"payload/h.0", "scales/h.0", "rest/h.0"}) {
      INFO(name);
      const BufferId state = right.states.Of(name);
      RunPlans run = right;
      std::erase(PlanIn(run, "train").seam.defines, state);
      REQUIRE(FirstOf(run, c) == "none");  // others form it again
      std::erase(PlanIn(run, "eval").prologue_seam.defines, state);
      REQUIRE_THAT(FirstOf(run, c), Contains("the eval plan reads the state " + std::string(name)));
    }
  }
}

TEST_CASE("what is gathered of shards in FP8 goes over the axes that shard them", "[plan][seams]") {
  PlanCase c = InFp8();
  c.mesh = Mesh(2, 2).With(Axis::kContext, 2);
  c.model.seq_len = 8;
  const RunPlans right = RunOf(c);
  REQUIRE(FirstOf(right, c) == "none");
  int changed = 0;
  for (size_t p = 0; p < right.plans.size(); ++p)
    for (size_t b = 0; b < right.plans[p].bodies.size(); ++b)
      for (size_t o = 0; o < right.plans[p].bodies[b].ops.size(); ++o) {
        RunPlans run = right;
        PlanOp& op = run.plans[p].bodies[b].ops[o];
        const AxisSet others{Axis::kReplicate, Axis::kContext};
        if (op.stream != StreamId::kGather) continue;
        if (auto* gather = std::get_if<AllGatherOp<View>>(&op.op))
          gather->axes = others;
        else if (auto* magnitudes = std::get_if<ShardMagnitudesOp<View>>(&op.op))
          magnitudes->flat_begin.axes = others;
        else if (auto* quantize = std::get_if<ShardQuantizeOp<View>>(&op.op))
          quantize->flat_begin.axes = others;
        else
          continue;
        INFO(Describe(op, run.plans[p]));
        CHECK_THAT(FirstOf(run, c), Contains("but the shards of"));
        for (const char* what : {"magnitudes/", "gather_magnitudes/", "quantize/"})
          changed += op.label.starts_with(what);
      }
  CHECK(changed == 3 * 2 * 4);  // of two blocks, in the update and in each plan's prologue
}

// Two axes of one size could be taken for each other, and bytes would not tell.
PlanCase OfEightRanks(Downcast downcast) {
  PlanCase c = Llama();
  c.mesh = Mesh(2, 2).With(Axis::kContext, 2);
  c.model.seq_len = 8;
  c.options.downcast = downcast;
  return c;
}

TEST_CASE("weights that evaluation gathers over axes that do not shard them are reported",
          "[plan][seams]") {
  const bool trains = GENERATE(true, false);
  for (const Downcast downcast :
       {Downcast::kPerGather, Downcast::kAfterUpdate, Downcast::kAfterGather}) {
    const PlanCase c = OfEightRanks(downcast);
    INFO(ToString(c));
    RunPlans right = RunOf(c);
    if (!trains) right.plans.erase(right.plans.begin());  // no update says how shards lie
    REQUIRE(FirstOf(right, c) == "none");
    int changed = 0;
    for (size_t p = trains ? 1 : 0; p < right.plans.size(); ++p)
      for (size_t b = 0; b < right.plans[p].bodies.size(); ++b)
        for (size_t o = 0; o < right.plans[p].bodies[b].ops.size(); ++o) {
          RunPlans run = right;
          PlanOp& op = run.plans[p].bodies[b].ops[o];
          auto* gather = std::get_if<AllGatherOp<View>>(&op.op);
          if (gather == nullptr || op.stream != StreamId::kGather) continue;
          gather->axes = AxisSet{Axis::kReplicate, Axis::kContext};
          INFO(Describe(op, run.plans[p]));
          CHECK_THAT(FirstOf(run, c), Contains("but the shards of"));
          ++changed;
        }
    CHECK(changed > 6);
  }
}

TEST_CASE("a step that updates shards along other axes than the layout's is reported",
          "[plan][seams]") {
  const PlanCase c = OfEightRanks(Downcast::kPerGather);
  RunPlans run = RunOf(c);
  // The whole step is of one mind, and proves itself.
  const auto exchange = [](AxisSet& axes) {
    if (axes == AxisSet{Axis::kShard, Axis::kContext})
      axes = AxisSet{Axis::kReplicate, Axis::kContext};
    else if (axes == AxisSet{Axis::kReplicate})
      axes = AxisSet{Axis::kShard};
  };
  for (Body& body : run.plans[0].bodies)
    for (PlanOp& op : body.ops) {
      if (auto* gather = std::get_if<AllGatherOp<View>>(&op.op)) exchange(gather->axes);
      if (auto* scatter = std::get_if<ReduceScatterOp<View>>(&op.op)) exchange(scatter->axes);
      if (auto* sum = std::get_if<AllReduceOp<View>>(&op.op)) exchange(sum->axes);
      if (auto* adamw = std::get_if<AdamWOp<View>>(&op.op)) exchange(adamw->flat_begin.axes);
    }
  run.plans.resize(1);
  CHECK_THAT(FirstOf(run, c), Contains("goes over replicate+context, but the shards of"));
}

TEST_CASE("what a prologue no longer defines is missed by each plan that reads it",
          "[plan][seams]") {
  const RunPlans right = RunOf(Llama());
  int dropped = 0;
  for (size_t p = 0; p < right.plans.size(); ++p) {
    const std::vector<BufferId>& defines = right.plans[p].prologue_seam.defines;
    for (size_t d = 0; d < defines.size(); ++d) {
      const std::vector<BufferId>& reads = right.plans[p].seam.reads;
      if (std::find(reads.begin(), reads.end(), defines[d]) == reads.end()) continue;
      RunPlans run = right;
      std::vector<BufferId>& fewer = run.plans[p].prologue_seam.defines;
      const std::string name = run.plans[p].buffer(fewer[d]).name;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(d));
      INFO(name << " of " << run.plans[p].name);
      REQUIRE_THAT(FirstOf(run),
                   Contains("the " + run.plans[p].name + " plan reads") && Contains(name));
      ++dropped;
    }
  }
  REQUIRE(dropped > 8);
  // What an update leaves stale, others must not find valid.
  RunPlans run = right;
  StepPlan& train = PlanIn(run, "train");
  const BufferId compute = run.states.Of("compute/h.0");
  std::erase(train.seam.defines, compute);
  REQUIRE(FirstOf(run) == "none");  // their prologues make it again
  std::erase(PlanIn(run, "eval").prologue_seam.defines, compute);
  REQUIRE_THAT(FirstOf(run), Contains("the eval plan reads the state compute/h.0"));
}

TEST_CASE("a plan that says less than it reads, or more than it defines, is not proved",
          "[plan][seams]") {
  const PlanCase c = Llama();
  const RunPlans run = RunOf(c);
  for (const StepPlan& right : run.plans)
    for (const bool prologue : {false, true}) {
      const Seam& seam = prologue ? right.prologue_seam : right.seam;
      for (const BufferId id : seam.reads) {
        if (!IsState(right.buffer(id).scope)) continue;
        const std::vector<BufferId>& made = right.prologue_seam.defines;
        if (!prologue && std::find(made.begin(), made.end(), id) != made.end()) continue;
        StepPlan plan = right;
        std::erase(plan.seam.reads, id);
        std::erase(plan.prologue_seam.reads, id);
        const Violations found = FindViolations(plan, c.mesh, 1, 1);
        INFO(plan.name << " without " << plan.buffer(id).name);
        REQUIRE(found.size() == 1);
        REQUIRE_THAT(found[0].message, Contains("reads the state " + plan.buffer(id).name) &&
                                           Contains("the " + plan.name + " plan"));
      }
      StepPlan plan = right;
      const BufferId stats = run.states.Of("stats");
      if (std::find(seam.defines.begin(), seam.defines.end(), stats) != seam.defines.end())
        continue;
      (prologue ? plan.prologue_seam : plan.seam).defines.push_back(stats);
      const Violations found = FindViolations(plan, c.mesh, 1, 1);
      REQUIRE(found.size() == 1);
      REQUIRE_THAT(found[0].message, Contains("says that it defines the state stats"));
    }
}

TEST_CASE("states lie apart, and where every plan looks for them", "[plan][seams]") {
  const RunPlans right = RunOf(Llama());
  for (size_t a = 0; a < right.states.tensors.size(); ++a) {
    RunPlans run = right;
    run.states.tensors[a].offset += kArenaAlignment;  // onto the next, or out of its scope
    REQUIRE(FirstOf(run) != "none");
    run = right;
    run.states.tensors[a].scope = StateScope::kEra;
    REQUIRE_THAT(FirstOf(run), Contains(run.states.tensors[a].name) && Contains("scope"));
    run = right;
    run.plans[1].buffers[a].scope = BufferScope::kEra;
    REQUIRE_THAT(FirstOf(run), Contains("the eval plan has " + run.states.tensors[a].name));
    run = right;
    run.plans[2].buffers[a].offsets[0] += kArenaAlignment;
    REQUIRE_THAT(FirstOf(run), Contains("the generate plan has"));
  }
  RunPlans run = right;
  run.states.tensors[1].offset = run.states.tensors[0].offset;
  for (StepPlan& plan : run.plans) plan.buffers[1].offsets = plan.buffers[0].offsets;
  REQUIRE_THAT(FirstOf(run), Contains("the states master/embed and adam_m/embed share bytes"));
  REQUIRE_THROWS_WITH(CheckSeams(run, test::LayoutOf(Llama())),
                      Contains("the plans of this run do not fit together"));
  run = right;
  run.plans[0] = test::PlanOf(PlanCase{});  // of another model
  REQUIRE(FirstOf(run) != "none");
}

TEST_CASE("constants of one name and another content are two states", "[plan][seams]") {
  PlanCase c = Llama();
  c.options.shape = {.batch = 2, .seq = c.model.seq_len};
  const Program a = test::ProgramOf(c);
  PlanCase other = c;
  other.model.rope_theta = 5 * c.model.rope_theta;
  other.kind = "eval";
  const Program b = test::ProgramOf(other);
  const ShardLayout layout = test::LayoutOf(c);
  const StateLayout one = PlanStates(layout, c.options, {&a, &a}),
                    two = PlanStates(layout, c.options, {&a, &b});
  CHECK(one == PlanStates(layout, c.options, {&a}));
  CHECK(ToString(one) != ToString(two));
  const auto constants = [](const StateLayout& states) {
    return std::count_if(states.tensors.begin(), states.tensors.end(),
                         [](const StateTensor& state) { return !state.content.empty(); });
  };
  CHECK(constants(one) > 0);
  CHECK(constants(two) == 2 * constants(one));
  RunPlans run{
      two,
      {PlanStep(layout, two, a, c.options, "train"), PlanStep(layout, two, b, c.options, "eval")}};
  CHECK(FirstOf(run) == "none");
  for (const StepPlan& plan : run.plans) CheckPlan(plan, c.mesh, 1);
  // Each reads its own.
  for (const BufferId id : run.plans[0].prologue_seam.defines)
    if (!two.tensor(id).content.empty())
      CHECK(std::find(run.plans[1].prologue_seam.defines.begin(),
                      run.plans[1].prologue_seam.defines.end(),
                      id) == run.plans[1].prologue_seam.defines.end());
  CHECK_THROWS_WITH(PlanStep(layout, one, b, c.options, "eval"),
                    Contains("made without the eval plan's constant"));
}

// --- An era, by hand: a run with one weight; an era's gathered weight and cache; a train plan
// whose activation lies where the era's states do.

constexpr int64_t kNumel = 64, kBytes = 256;

class HandEra {
 public:
  HandEra() {
    weight_ = run.states.Add({.name = "weight", .layout = DenseLayout(DType::kF32, {kNumel})});
    gathered_ = run.states.Add({.name = "gathered",
                                .layout = DenseLayout(DType::kF32, {kNumel}),
                                .scope = StateScope::kEra,
                                .writer = StateWriter::kPrologue,
                                .source = weight_});
    cache_ = run.states.Add({.name = "cache",
                             .layout = DenseLayout(DType::kF32, {kNumel}),
                             .scope = StateScope::kEra,
                             .writer = StateWriter::kPlans});
    StepPlan train = Plan("train");
    const BufferId activation = Buffer(train, "activation", run.states.run_bytes, {{0, 2}});
    Copy(train, 0, weight_, activation);
    Copy(train, 0, activation, weight_);
    StepPlan prefill = Plan("prefill"), decode = Plan("decode");
    for (StepPlan* plan : {&prefill, &decode}) {
      Copy(*plan, 1, weight_, gathered_);
      const BufferId x = Buffer(*plan, "x", run.states.run_bytes + run.states.era_bytes,
                                {{0, plan == &decode ? 3 : 2}});
      Copy(*plan, 0, gathered_, x);
      if (plan == &decode) Copy(*plan, 0, cache_, x);
      Copy(*plan, 0, x, cache_);
    }
    for (StepPlan* plan : {&train, &prefill, &decode}) Finish(*plan);
    run.plans = {train, prefill, decode};
  }

  RunPlans run;
  BufferId weight_, gathered_, cache_;

 private:
  StepPlan Plan(const std::string& name) {
    StepPlan plan;
    plan.name = name;
    for (const StateTensor& state : run.states.tensors)
      plan.buffers.push_back(
          {state.name,
           kBytes,
           state.cls,
           state.scope == StateScope::kRun ? BufferScope::kPersistent : BufferScope::kEra,
           {},
           {},
           -1,
           false});
    plan.bodies = {{name, {}, 0}, {"prologue", {}, 0, Phase::kPrologue}};
    plan.schedule = {{0, 0, {}}};
    plan.prologue = {{1, 0, {}}};
    return plan;
  }
  static BufferId Buffer(StepPlan& plan, const std::string& name, int64_t offset,
                         std::vector<Interval> live) {
    plan.buffers.push_back({name,
                            kBytes,
                            BufferClass::kActivations,
                            BufferScope::kMicrobatch,
                            std::move(live),
                            {offset},
                            -1,
                            false});
    return {static_cast<int32_t>(plan.buffers.size()) - 1};
  }
  static View Whole(BufferId id) {
    return {.buffer = id, .layout = DenseLayout(DType::kF32, {kNumel})};
  }
  static void Copy(StepPlan& plan, size_t body, BufferId from, BufferId to) {
    CastOp<View> op;
    op.x = Whole(from);
    op.out = Whole(to);
    plan.bodies[body].ops.push_back({op, StreamId::kCompute, "copy", {}});
    for (const BufferId id : {from, to})
      if (IsState(plan.buffer(id).scope))
        plan.buffers[static_cast<size_t>(id.value)].live = {{0, 1000}};
  }
  void Finish(StepPlan& plan) {
    plan.bodies[1].begin = plan.bodies[0].end();
    plan.persistent_bytes = run.states.run_bytes;
    for (size_t s = 0; s < run.states.tensors.size(); ++s) {
      PlanBuffer& buffer = plan.buffers[s];
      if (buffer.scope == BufferScope::kPersistent) buffer.live = {{0, 1000}};
      if (buffer.live.empty()) continue;
      buffer.offsets = {run.states.tensors[s].offset};
      if (buffer.scope == BufferScope::kEra) plan.persistent_bytes += run.states.era_bytes;
    }
    plan.persistent_bytes =
        std::min(plan.persistent_bytes, run.states.run_bytes + run.states.era_bytes);
    plan.arena_bytes = run.states.run_bytes + run.states.era_bytes + kBytes;
    DeclareSeams(plan);
  }
};

TEST_CASE("an era is laid over training, and what training ran over is not read", "[plan][seams]") {
  const HandEra era;
  const RunPlans& run = era.run;
  constexpr size_t kTrain = 0, kPrefill = 1, kDecode = 2;
  REQUIRE(run.states.tensor(era.gathered_).offset == run.states.run_bytes);
  for (const StepPlan& plan : run.plans) {
    INFO(ToString(plan));
    CheckPlan(plan, {1, 1}, 1);
  }
  REQUIRE(FirstOf(run) == "none");

  StateValidity at(run.states, run.All());
  REQUIRE(at.Missing(kTrain, false) == era.weight_);
  REQUIRE(at.Describe(kTrain, era.weight_) ==
          "the train plan reads the state weight, which nobody has defined, or not since what it "
          "is made from was written");
  at.HostWrites(era.weight_);
  REQUIRE(!at.Missing(kTrain, false));
  REQUIRE(!at.NeedsPrologue(kTrain));
  const auto step = [&](size_t plan) {
    if (at.NeedsPrologue(plan)) at.Ran(plan, true);
    REQUIRE(!at.Missing(plan, false));
    at.Ran(plan, false);
  };
  step(kTrain);
  REQUIRE(at.Missing(kDecode, false) == era.gathered_);
  REQUIRE(at.NeedsPrologue(kDecode));
  at.Ran(kDecode, true);
  REQUIRE(at.Missing(kDecode, false) == era.cache_);  // which the host gets by a prefill
  step(kPrefill);
  REQUIRE(!at.NeedsPrologue(kDecode));  // gathered once for both
  step(kDecode);
  step(kDecode);
  step(kTrain);
  REQUIRE(!at.valid(era.gathered_));
  REQUIRE(!at.valid(era.cache_));
  REQUIRE(at.NeedsPrologue(kDecode));
  REQUIRE_THAT(at.Describe(kDecode, at.Missing(kDecode, false)),
               Contains("the decode plan reads the state gathered, which the train plan has run "
                        "over"));
  at.Ran(kDecode, true);
  REQUIRE_THAT(at.Describe(kDecode, at.Missing(kDecode, false)),
               Contains("the state cache, which the train plan has run over"));
  step(kPrefill);
  step(kDecode);
  at.HostWrites(era.weight_);  // another version: gathered again, the cache's bytes are still there
  REQUIRE(at.NeedsPrologue(kDecode));
  REQUIRE(at.valid(era.cache_));
}

TEST_CASE("an era whose states nobody makes again is a violation", "[plan][seams]") {
  const HandEra era;
  const auto without = [&](const std::string& name, Seam StepPlan::*seam, BufferId id) {
    RunPlans run = era.run;
    std::erase((PlanIn(run, name).*seam).defines, id);
    return FirstOf(run);
  };
  REQUIRE_THAT(without("decode", &StepPlan::prologue_seam, era.gathered_),
               Contains("the decode plan reads the state gathered, which the train plan has run "
                        "over") ||
                   Contains("the decode plan reads the state gathered, which nobody"));
  RunPlans run = era.run;  // no prefill: nobody fills the cache first
  run.plans.erase(run.plans.begin() + 1);
  REQUIRE_THAT(FirstOf(run),
               Contains("the decode plan reads the state") && Contains("no plan leaves it"));
  // A train plan that keeps its hands off would be no trouble: the bytes are what tells.
  run = era.run;
  PlanIn(run, "train").persistent_bytes += run.states.era_bytes;
  REQUIRE_THAT(FirstOf(run), Contains("the train plan keeps"));
}

TEST_CASE("a state of an era moves nothing in a plan that does not use it", "[plan][seams]") {
  PlanCase c = Llama();
  c.options.shape = {.batch = 2, .seq = c.model.seq_len};
  const ShardLayout layout = test::LayoutOf(c);
  const Program program = test::ProgramOf(c);
  StateLayout states = PlanStates(layout, c.options, {&program});
  const StepPlan alone = PlanStep(layout, states, program, c.options, "train");
  states.Add({.name = "cache",
              .layout = DenseLayout(DType::kBF16, {100000}),
              .scope = StateScope::kEra,
              .writer = StateWriter::kPlans});
  const StepPlan beside = PlanStep(layout, states, program, c.options, "train");
  REQUIRE(beside.arena_bytes == alone.arena_bytes);
  REQUIRE(ToString(beside) == ToString(alone));
  REQUIRE(FirstOf({states, {beside}}) == "none");
  REQUIRE_THROWS_WITH(states.Add({.name = "late", .layout = DenseLayout(DType::kF32, {1})}),
                      Contains("late: states of the run come before those of an era"));
  REQUIRE_THROWS_WITH(
      states.Add(
          {.name = "cache", .layout = DenseLayout(DType::kF32, {1}), .scope = StateScope::kEra}),
      Contains("two states of one run are called cache"));
}

}  // namespace
}  // namespace millrace
