// No plan needs more bytes than it did when golden/plan_quality.txt was written: on every
// configuration of the repository and on 500 random cases, some of more than a hundred layers.
//
// A line of the file: the case, the arena's bytes, and the lower bound on them. An arena that has
// become smaller is written down anew as golden text is (tests/support/golden.h), so that it stays
// small.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/config/load.h"
#include "runtime/plan/schedule/planner.h"
#include "runtime/run/assemble.h"
#include "tests/support/plan_case.h"

namespace millrace {
namespace {

using test::PlanCase;

constexpr const char* kFile = "tests/runtime/plan/golden/plan_quality.txt";
constexpr int kRandomCases = 500;

struct Quality {
  int64_t arena_bytes = 0, lower_bound = 0;
};

struct Case {
  std::string name;
  Quality quality;
};

int64_t Below(std::mt19937& random, int64_t n) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
}

template <class T>
T OneOf(std::mt19937& random, std::initializer_list<T> values) {
  return *(values.begin() + Below(random, static_cast<int64_t>(values.size())));
}

ModelOptions RandomModel(std::mt19937& random) {
  ModelOptions o = Below(random, 2) == 0 ? test::TinyGpt2() : test::TinyLlama();
  const int64_t size = Below(random, 20);
  const int64_t layers = size < 13   ? 1 + Below(random, 9)
                         : size < 17 ? 10 + Below(random, 31)
                                     : 41 + Below(random, 120);
  AttentionShape attention;
  attention.head_dim = 4 * (1 + Below(random, 4));
  attention.kv_heads = 1 + Below(random, 3);
  const bool gpt2 = o.family == Name(ModelFamily::kGpt2);
  attention.heads = gpt2 ? attention.kv_heads : attention.kv_heads * (1 + Below(random, 3));
  o.d_model = 8 + Below(random, 90);
  const int64_t width = 8 + 2 * Below(random, 150);
  o.blocks = EqualBlocks(layers, attention,
                         {width, gpt2 ? ActivationKind::kGelu : ActivationKind::kSwiglu});
  o.vocab = 20 + Below(random, 400);
  o.seq_len = 3 + Below(random, 40);
  o.tied = Below(random, 2) == 0;
  o.blocks_per_unit = Below(random, 4) == 0 ? 1 + Below(random, 3) : 1;
  return o;
}

PlanOptions RandomOptions(std::mt19937& random) {
  PlanOptions o;
  o.accumulate = OneOf(random, {1, 1, 2, 3, 5, 16});
  o.reshard = OneOf(random, {Reshard::kNever, Reshard::kAfterBackward, Reshard::kAfterForward,
                             Reshard::kAfterForward});
  o.downcast = OneOf(random, {Downcast::kAfterGather, Downcast::kPerGather, Downcast::kInGather,
                              Downcast::kAfterUpdate});
  o.grad_sync = OneOf(random, {GradSync::kEvery, GradSync::kLast});
  o.grad_concat = OneOf(
      random, {GradConcat::kEvery, GradConcat::kLast, GradConcat::kDirect, GradConcat::kDirect});
  if (o.grad_sync == GradSync::kEvery && o.grad_concat == GradConcat::kLast)
    o.grad_concat = GradConcat::kDirect;  // not possible with several microbatches
  o.allocator =
      OneOf(random, {AllocatorKind::kPacked, AllocatorKind::kPacked, AllocatorKind::kPacked,
                     AllocatorKind::kPacked, AllocatorKind::kColoured, AllocatorKind::kPersistent,
                     AllocatorKind::kDynamic});
  o.prefetch = static_cast<int>(Below(random, 4));
  o.slots = o.prefetch + 1 + static_cast<int>(Below(random, 3));
  o.reduce_depth = static_cast<int>(1 + Below(random, 3));
  o.overlap_weight_gradients = Below(random, 4) == 0;
  o.clip = 1;
  return o;
}

PlanCase RandomCase(std::mt19937& random) {
  PlanCase c;
  c.model = RandomModel(random);
  c.mesh = {OneOf(random, {1, 1, 2}), OneOf(random, {1, 2, 3, 4, 8})};
  c.precision = {OneOf(random, {DType::kF32, DType::kBF16}),
                 OneOf(random, {DType::kF32, DType::kBF16}),
                 OneOf(random, {DType::kF32, DType::kF32, DType::kBF16}),
                 OneOf(random, {DType::kF32, DType::kBF16})};
  c.recompute =
      OneOf(random, {Recompute::kNone, Recompute::kNone, Recompute::kNorms, Recompute::kBlock});
  c.options = RandomOptions(random);
  return c;
}

std::vector<Case> RandomCases() {
  std::vector<Case> cases;
  for (int i = 0; i < kRandomCases; ++i) {
    std::mt19937 random(static_cast<uint32_t>(1000 + i));
    const PlanCase c = RandomCase(random);
    const StepPlan plan = test::PlanOf(c);
    cases.push_back({fmt::format("random/{}", i), {plan.arena_bytes, plan.lower_bound}});
  }
  return cases;
}

// Training plans of every file in configs, on one GPU and on eight; on eight alone where a file
// asks for more than one.
std::vector<Case> ConfiguredCases() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator("configs"))
    if (entry.path().extension() == ".json") files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  std::vector<Case> cases;
  for (const std::string& file : files) {
    for (const int world : {1, 8}) {
      if (world == 1 && file == "configs/llama_1b_128k.json") continue;  // context 4
      const LoadedConfig loaded =
          LoadConfig(std::vector<std::string>{file}, {}, {.world = world, .has_cuda = true});
      const AssembledRun run =
          Assemble(loaded.config, world, {.backend = Backend::kCuda}, {"train"});
      const StepPlan& plan = run.plans.Of("train");
      cases.push_back({fmt::format("{}/{}", std::filesystem::path(file).stem().string(), world),
                       {plan.arena_bytes, plan.lower_bound}});
    }
  }
  return cases;
}

std::map<std::string, Quality> Recorded() {
  std::ifstream file(kFile);
  std::map<std::string, Quality> recorded;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    Quality quality;
    REQUIRE(words >> name >> quality.arena_bytes >> quality.lower_bound);
    recorded[name] = quality;
  }
  return recorded;
}

TEST_CASE("no plan needs more bytes than the one on record", "[plan][quality]") {
  std::vector<Case> cases = ConfiguredCases();
  REQUIRE(cases.size() >= 18);
  for (Case& c : RandomCases()) cases.push_back(std::move(c));
  if (const char* root = std::getenv("MILLRACE_UPDATE_GOLDEN")) {
    std::ofstream file(std::string(root) + "/" + kFile);
    for (const Case& c : cases)
      file << c.name << ' ' << c.quality.arena_bytes << ' ' << c.quality.lower_bound << '\n';
    FAIL("wrote " << kFile);
  }
  const std::map<std::string, Quality> recorded = Recorded();
  int at_bound = 0, at_bound_on_record = 0;
  for (const Case& c : cases) {
    INFO(c.name);
    const auto it = recorded.find(c.name);
    REQUIRE(it != recorded.end());
    CHECK(c.quality.lower_bound <= c.quality.arena_bytes);
    CHECK(c.quality.arena_bytes <= it->second.arena_bytes);
    at_bound += c.quality.arena_bytes == c.quality.lower_bound;
    at_bound_on_record += it->second.arena_bytes == it->second.lower_bound;
  }
  REQUIRE(at_bound >= at_bound_on_record);
  REQUIRE(recorded.size() == cases.size());
}

TEST_CASE("sequences of 131072 split over four cards are recomputed as a budget asks",
          "[plan][quality]") {
  const auto config_of = [](const std::string& set) {
    return LoadConfig(std::vector<std::string>{"configs/llama_1b_128k.json"},
                      std::vector<std::string>{set}, {.world = 4, .has_cuda = true})
        .config;
  };
  const auto plan_of = [&](const std::string& set) {
    return Assemble(config_of(set), 4, {.backend = Backend::kCuda}, {"train"});
  };
  // Its bound, which it meets; a plan would fill the budget with keys of other ranks.
  const auto arena_of = [&](const char* recompute) {
    return DraftTraining(config_of(std::string("memory.recompute=") + recompute), 4,
                         {.backend = Backend::kCuda})
        .plan.lower_bound;
  };
  const int64_t kept = arena_of("none"), most = arena_of("block");
  CHECK(most < kept / 4);
  for (const int64_t part : {1, 4, 7}) {
    const int64_t budget = most + (kept - most) * part / 8;
    INFO("budget " << budget);
    const AssembledRun run =
        plan_of(fmt::format("memory.budget_gib={}", std::ldexp(static_cast<double>(budget), -30)));
    const StepPlan& plan = run.plans.Of("train");
    CHECK(plan.arena_bytes <= budget);
    CHECK(plan.arena_bytes > budget - (kept - most) / 8);  // no more again than must be
    CHECK(plan.arena_bytes == plan.lower_bound);
    CHECK((run.recompute.counts.everything > 0) == (part < 7));
  }
  CHECK_THROWS_WITH(
      plan_of(fmt::format("memory.budget_gib={}", std::ldexp(static_cast<double>(most - 1), -30))),
      Catch::Contains("even with every block computed again"));
}

}  // namespace
}  // namespace millrace
