#include "runtime/plan/schedule/recompute.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "runtime/base/error.h"
#include "runtime/plan/check/checker.h"
#include "runtime/plan/cost/machine.h"
#include "runtime/plan/cost/timeline.h"
#include "runtime/plan/nodes/activation.h"
#include "runtime/plan/nodes/norm.h"
#include "tests/support/tiny_models.h"

namespace millrace {
namespace {

struct Case {
  ModelOptions model;
  Mesh mesh = {1, 1};
  int64_t batch = 8;
  PlanOptions options;
};

// Wide enough for activations to outweigh all else, with blocks that differ
// from what is beside them.
Case Gpt2(int64_t layers, Backend backend = Backend::kCpu) {
  Case c;
  c.model = test::TinyGpt2(layers);
  c.model.d_model = 96;
  c.model.blocks = EqualBlocks(layers, {.heads = 3, .kv_heads = 3, .head_dim = 32}, {.width = 352});
  c.model.seq_len = 64;
  c.options.backend = backend;
  return c;
}

Case Llama(int64_t layers, Backend backend = Backend::kCpu) {
  Case c = Gpt2(layers, backend);
  c.model = test::TinyLlama(layers);
  c.model.d_model = 96;
  c.model.blocks = EqualBlocks(layers, {.heads = 3, .kv_heads = 1, .head_dim = 32},
                               {.width = 224, .activation = ActivationKind::kSwiglu});
  c.model.seq_len = 64;
  return c;
}

// What the choice is made from, kept alive.
// Units by kind; the cheap kinds of both families, by name.
int64_t ActivationsIn(const RecomputeCounts& counts) { return counts.cheap.at(0).units; }
int64_t NormsIn(const RecomputeCounts& counts) { return counts.cheap.at(1).units; }

struct Setup {
  explicit Setup(const Case& c)
      : layout(PlanShards(MakeModel(c.model)->spec(), c.mesh, {})),
        forward(test::ForwardOf(c.model, HeadMode::kTrainLoss, DType::kF32, DType::kF32, c.batch)),
        options(c.options) {
    options.shape = {c.batch, c.model.seq_len};
    lower.backend = options.backend;
  }

  RecomputeChoice Choose(int64_t budget, int64_t device = 0) const {
    PlanOptions with = options;
    with.budget_bytes = budget;
    const Program constants = Lower(forward, lower);
    const StateLayout states = PlanStates(layout, with, {&constants});
    return ChooseRecompute({layout, states, forward, lower, with, device});
  }
  StepPlan Plan(const std::vector<UnitRecompute>& units, int64_t budget = 0) const {
    PlanOptions with = options;
    with.budget_bytes = budget;
    const Program program = Lower(AddGradients(forward, units), lower);
    return PlanStep(layout, PlanStates(layout, with, {&program}), program, with, "train");
  }
  int64_t Arena(Recompute policy) const { return Plan(RecomputeOf(forward, policy)).arena_bytes; }
  double Seconds(const std::vector<UnitRecompute>& units) const {
    const StepPlan plan = Plan(units);
    const Machine& machine = FindMachine(options.backend == Backend::kCuda ? "h100" : "cpu");
    return Simulate(plan, plan.schedule, layout.mesh, machine)
        .busy[static_cast<size_t>(StreamId::kCompute)];
  }
  // As a choice says it: activations, norms, everything in the first so many block units.
  std::vector<UnitRecompute> First(int64_t activations, int64_t norms, int64_t everything) const {
    std::vector<UnitRecompute> units(forward.unit_names.size());
    int64_t block = 0;
    for (size_t u = 0; u < units.size(); ++u) {
      if (!forward.IsBlock(u)) continue;
      if (block < activations) units[u].cheap.push_back(&kActivationNode);
      if (block < norms) units[u].cheap.push_back(&kNormNode);
      units[u].dear = block < everything;
      ++block;
    }
    return units;
  }

  ShardLayout layout;
  SemanticGraph forward;
  PlanOptions options;
  LowerOptions lower;
};

TEST_CASE("within every budget from the least to the most, and dearer only for less",
          "[plan][recompute]") {
  Case c = GENERATE(Gpt2(4), Llama(4), Gpt2(4, Backend::kCuda), Llama(4, Backend::kCuda));
  struct Variant {
    int shard, accumulate, blocks_per_unit;
    AllocatorKind allocator;
  };
  const Variant v = GENERATE(
      Variant{1, 1, 1, AllocatorKind::kPacked}, Variant{2, 3, 1, AllocatorKind::kPacked},
      Variant{2, 1, 3, AllocatorKind::kColoured}, Variant{3, 1, 1, AllocatorKind::kDynamic});
  c.mesh = {1, v.shard};
  c.options.accumulate = v.accumulate;
  c.options.allocator = v.allocator;
  c.model.blocks_per_unit = v.blocks_per_unit;
  const Setup s(c);
  const int64_t none = s.Arena(Recompute::kNone), norms = s.Arena(Recompute::kNorms),
                least = std::min(norms, s.Arena(Recompute::kBlock));
  CAPTURE(none, norms, least);
  REQUIRE(norms < none);
  const RecomputeChoice all_fits = s.Choose(none);
  REQUIRE(all_fits.units == RecomputeOf(s.forward, Recompute::kNone));
  REQUIRE(all_fits.saved_bytes == 0);
  double last = s.Seconds(all_fits.units);
  std::set<int64_t> sizes;
  constexpr int kBudgets = 9;
  for (int i = 0; i <= kBudgets; ++i) {
    const int64_t budget = none - (none - least) * i / kBudgets;
    CAPTURE(budget);
    const RecomputeChoice choice = s.Choose(budget);
    REQUIRE(choice.searched);
    const StepPlan plan = s.Plan(choice.units, budget);
    REQUIRE(plan.arena_bytes <= budget);
    REQUIRE(none - plan.arena_bytes == choice.saved_bytes);
    REQUIRE(FindViolations(plan, c.mesh, c.options.accumulate).empty());
    REQUIRE(choice.units == s.First(ActivationsIn(choice.counts), NormsIn(choice.counts),
                                    choice.counts.everything));
    const double now = s.Seconds(choice.units);
    REQUIRE(now >= last * (1 - 1e-12));
    last = now;
    sizes.insert(plan.arena_bytes);
  }
  const int64_t units = static_cast<int64_t>(s.forward.unit_names.size()) - 2;
  REQUIRE(static_cast<int64_t>(sizes.size()) > units + 1);  // by unit and by kind, not all or none
}

TEST_CASE("no more than asked for: with a unit less of either kind the budget is not kept",
          "[plan][recompute]") {
  const Case c = GENERATE(Gpt2(5), Gpt2(5, Backend::kCuda), Llama(5, Backend::kCuda));
  const Setup s(c);
  const int64_t none = s.Arena(Recompute::kNone), norms = s.Arena(Recompute::kNorms);
  for (int i = 1; i <= 9; ++i) {
    const int64_t budget = none - (none - norms) * i / 9;
    const RecomputeCounts n = s.Choose(budget).counts;
    const int64_t a = ActivationsIn(n), b = NormsIn(n);
    CAPTURE(budget, ToString(n));
    REQUIRE(n.everything == 0);
    REQUIRE(a + b > 0);
    if (a > 0) REQUIRE(s.Plan(s.First(a - 1, b, 0)).arena_bytes > budget);
    if (b > 0) REQUIRE(s.Plan(s.First(a, b - 1, 0)).arena_bytes > budget);
  }
}

// Every pair of prefixes, by hand: none that fits has a shorter simulated step.
TEST_CASE("the cheapest choice by the cost model", "[plan][recompute]") {
  const Case c = GENERATE(Gpt2(4), Llama(4), Gpt2(4, Backend::kCuda), Llama(4, Backend::kCuda));
  const Setup s(c);
  struct Pair {
    int64_t arena;
    double seconds;
  };
  std::vector<Pair> pairs;
  for (int64_t a = 0; a <= 4; ++a)
    for (int64_t b = 0; b <= 4; ++b)
      pairs.push_back({s.Plan(s.First(a, b, 0)).arena_bytes, s.Seconds(s.First(a, b, 0))});
  std::set<std::string> choices;
  for (const Pair& pair : pairs) {
    const RecomputeChoice choice = s.Choose(pair.arena);
    CAPTURE(pair.arena, ToString(choice.counts));
    const double seconds = s.Seconds(choice.units);
    for (const Pair& other : pairs)
      if (other.arena <= pair.arena) CHECK(seconds <= other.seconds * (1 + 1e-9));
    choices.insert(ToString(choice.counts));
  }
  REQUIRE(choices.size() >= 8);
}

TEST_CASE("which kind comes first is a matter of the machine's rates", "[plan][recompute]") {
  // GELU's tanh costs a core far more than reading and writing does; a GPU pays per byte and per
  // kernel.
  const auto first = [](const Case& c) {
    const Setup s(c);
    return s.Choose(s.Arena(Recompute::kNone) - (1 << 10)).counts;
  };
  const RecomputeCounts cpu = first(Gpt2(6));
  REQUIRE((ActivationsIn(cpu) == 0 && NormsIn(cpu) == 1));
  Case wide = Gpt2(6, Backend::kCuda);
  for (BlockShape& block : wide.model.blocks) block.Find<MlpShape>()->width = 4096;
  const Setup s(wide);
  const int64_t none = s.Arena(Recompute::kNone), norms = s.Arena(Recompute::kNorms);
  const RecomputeCounts gpu = s.Choose(none - (none - norms) / 2).counts;
  REQUIRE(ActivationsIn(gpu) >= 3);
  REQUIRE(NormsIn(gpu) <= 1);
}

TEST_CASE("the budget decides, else the device, else nothing is recomputed", "[plan][recompute]") {
  const Setup s(Gpt2(3));
  const int64_t none = s.Arena(Recompute::kNone), norms = s.Arena(Recompute::kNorms),
                block = s.Arena(Recompute::kBlock);
  REQUIRE(block < norms);
  const std::vector<UnitRecompute> nothing = s.First(0, 0, 0);
  REQUIRE(s.Choose(0).units == nothing);
  REQUIRE(s.Choose(0, none).units == nothing);
  REQUIRE(s.Choose(0, none - 1).units != nothing);
  REQUIRE(s.Plan(s.Choose(0, norms).units).arena_bytes <= norms);
  REQUIRE(s.Choose(none, norms).units == nothing);
  REQUIRE(s.Choose(norms, none).units == s.Choose(norms).units);
  REQUIRE(s.Plan(s.Choose(0, block).units).arena_bytes <= block);
  REQUIRE(s.Choose(0, 1).units ==
          RecomputeOf(s.forward, Recompute::kBlock));  // as much as can be done
  try {
    s.Choose(block - 1);
    FAIL("fits below the least");
  } catch (const Error& error) {
    REQUIRE(error.code() == ErrorCode::kDoesNotFit);
    const std::string message = error.what();
    CAPTURE(message);
    REQUIRE(message.find(std::to_string(block) + " bytes") != message.npos);
    REQUIRE(message.find("memory.budget_gib allows " + std::to_string(block - 1)) != message.npos);
  }
}

TEST_CASE("nothing is recomputed to keep blocks gathered; what is left of the budget keeps them",
          "[plan][recompute]") {
  Case c = Gpt2(5);
  c.mesh = {1, 2};
  const Setup after_forward(c);
  c.options.reshard = Reshard::kAuto;
  const Setup fill(c);
  const int64_t none = after_forward.Arena(Recompute::kNone),
                norms = after_forward.Arena(Recompute::kNorms);
  for (int i = 0; i <= 8; ++i) {
    const int64_t budget = none - (none - norms) * i / 8;
    CAPTURE(budget);
    const RecomputeChoice choice = fill.Choose(budget);
    REQUIRE(choice.units == after_forward.Choose(budget).units);
    REQUIRE(fill.Plan(choice.units, budget).arena_bytes <= budget);
  }
}

TEST_CASE("a choice says its units", "[plan][recompute]") {
  const auto counts = [](int64_t blocks, int64_t activations, int64_t norms, int64_t everything) {
    return RecomputeCounts{blocks, {{"activation", activations}, {"norm", norms}}, everything};
  };
  REQUIRE(ToString(counts(12, 0, 0, 0)) == "nothing");
  REQUIRE(ToString(counts(12, 3, 1, 0)) == "activations in 3, norms in 1 of 12 block units");
  const SemanticGraph forward = test::ForwardOf(test::TinyLlama(4));
  REQUIRE(GivenRecompute(forward, Recompute::kNone).counts == counts(4, 0, 0, 0));
  REQUIRE(GivenRecompute(forward, Recompute::kNorms).counts == counts(4, 4, 4, 0));
  const RecomputeChoice block = GivenRecompute(forward, Recompute::kBlock);
  REQUIRE(block.counts == counts(4, 4, 4, 4));
  REQUIRE_FALSE(block.searched);
}

}  // namespace
}  // namespace millrace
