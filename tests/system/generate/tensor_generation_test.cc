// Prefill and decode of ranks along tensor, which generate together: on the CPU with the bits of
// the training forward on as many ranks.
#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/plan/check/checker.h"
#include "tests/system/generate/cached_sequences.h"

namespace millrace::test {
namespace {

Trial TensorTrial(ModelConfig::Family family, Precision precision, int tensor, int shard = 1) {
  Trial trial = GeneratingTrial(family, precision, tensor * shard);
  trial.config.parallel.tensor = tensor;
  return trial;
}

constexpr ModelConfig::Family kFamilies[] = {
    ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama, ModelConfig::Family::kQwen3,
    ModelConfig::Family::kNemotronH};

TEST_CASE("ranks along tensor have the training forward's bits, in any order and cut") {
  for (const auto family : kFamilies)
    for (const auto precision : {Precision::kFp32, Precision::kBf16}) {
      CAPTURE(static_cast<int>(family), static_cast<int>(precision));
      static_cast<void>(RequireLogits(TensorTrial(family, precision, 2)));
    }
}

// Ranks that do not divide the head's 64 rows: the last of them has fewer.
Trial ThreeRanks(ModelConfig::Family family, Precision precision) {
  Trial trial = TensorTrial(family, precision, 3);
  Config& c = trial.config;
  c.model.d_model = 48;
  c.model.heads = 6;
  if (family != ModelConfig::Family::kGpt2) c.model.kv_heads = 3;
  c.model.mamba.heads = 6;
  c.model.mamba.groups = 3;
  c.train.micro_batch = 3;
  return trial;
}

TEST_CASE("they have them where ranks do not divide the vocabulary") {
  for (const auto family : kFamilies)
    for (const auto precision : {Precision::kFp32, Precision::kBf16})
      for (const bool tied : {false, true}) {
        CAPTURE(static_cast<int>(family), static_cast<int>(precision), tied);
        Trial trial = ThreeRanks(family, precision);
        trial.config.model.tied = tied;
        static_cast<void>(RequireLogits(trial));
      }
}

// Elements of a state; 0: there is none.
int64_t NumelOf(const StateLayout& states, const std::string& name) {
  const BufferId id = states.Find(name);
  return id ? states.tensor(id).layout.numel() : 0;
}

TEST_CASE("an era has a rank's part of the head, which is nowhere whole; a tied table is") {
  for (const int tensor : {2, 3})
    for (const auto precision : {Precision::kFp32, Precision::kBf16}) {
      CAPTURE(tensor, static_cast<int>(precision));
      Trial trial = tensor == 2 ? TensorTrial(ModelConfig::Family::kLlama, precision, 2)
                                : ThreeRanks(ModelConfig::Family::kLlama, precision);
      const int64_t width = trial.config.model.d_model, part = tensor == 2 ? 32 : 24,
                    bytes = precision == Precision::kFp32 ? 4 : 2;
      trial.config.model.tied = false;
      const AssembledRun run = InferenceRun(trial);
      CHECK(NumelOf(run.plans.states, "era_part/head") == part * width);
      // Where all is f32 the last norm is in the head's flat, ahead of it.
      CHECK(NumelOf(run.plans.states, "era/head") == (bytes == 4 ? 64 : 0));
      for (const StepPlan& plan : run.plans.plans) {
        if (!plan.name.starts_with("decode") && !plan.name.starts_with("prefill")) continue;
        for (size_t b = run.plans.states.tensors.size(); b < plan.buffers.size(); ++b) {
          const PlanBuffer& buffer = plan.buffers[b];
          INFO(plan.name << " " << buffer.name);
          CHECK((buffer.live.empty() || buffer.name.find("head") == std::string::npos ||
                 buffer.bytes < 64 * width * bytes));
        }
      }
      trial.config.model.tied = true;
      const AssembledRun tied = InferenceRun(trial);
      CHECK(NumelOf(tied.plans.states, "era_part/embed") == 0);
      CHECK(NumelOf(tied.plans.states, "era/embed") >= 64 * width);
    }
}

TEST_CASE("they have them where ranks share key and value heads, with any option") {
  Trial trial = TensorTrial(ModelConfig::Family::kLlama, Precision::kBf16, 4);
  int option = 0;
  const auto require = [&](const std::function<void(Trial&)>& change) {
    INFO("option " << ++option << " of this list");
    Trial other = trial;
    change(other);
    static_cast<void>(RequireLogits(other));
  };
  require([](Trial&) {});  // two ranks to a key and value head
  require([](Trial& t) { t.config.model.family = ModelConfig::Family::kQwen3; });
  trial = TensorTrial(ModelConfig::Family::kLlama, Precision::kFp32, 2);
  require([](Trial& t) { t.config.model.tied = true; });
  require([](Trial& t) { t.config.model.attention.window = 9; });
  require([](Trial& t) { t.config.execution.graph = GraphMode::kOff; });
  require([](Trial& t) { t.config.memory.allocator = MemoryConfig::Allocator::kDynamic; });
  const Generated plain = RequireLogits(trial);
  trial.config.execution.checked = true;
  static_cast<void>(RequireLogits(trial, &plain));
  trial.config.execution.checked = false;
  trial.adversary_seed = 3;
  static_cast<void>(RequireLogits(trial, &plain));
}

TEST_CASE("groups of ranks along tensor generate on their own") {
  for (const auto precision : {Precision::kFp32, Precision::kBf16All})
    static_cast<void>(RequireLogits(TensorTrial(ModelConfig::Family::kLlama, precision, 2, 2)));
}

TEST_CASE("a token takes a sum for each half block and its logits, over ranks along tensor alone") {
  const AssembledRun run =
      InferenceRun(TensorTrial(ModelConfig::Family::kGpt2, Precision::kFp32, 2, 2));
  for (const StepPlan& plan : run.plans.plans) {
    if (!plan.name.starts_with("decode") && !plan.name.starts_with("prefill")) continue;
    INFO(plan.name);
    std::vector<std::string> exchanged;
    for (const Entry& entry : plan.schedule)
      for (const PlanOp& op : plan.bodies[static_cast<size_t>(entry.body)].ops) {
        if (!IsCollective(op.op)) continue;
        if (const auto* gather = std::get_if<AllGatherOp<View>>(&op.op)) {
          CHECK(gather->axes == AxisSet(Axis::kTensor));
        } else {
          const auto* sum = std::get_if<AllReduceOp<View>>(&op.op);
          REQUIRE(sum != nullptr);
          CHECK(sum->axes == AxisSet(Axis::kTensor));
        }
        exchanged.push_back(op.label);
      }
    CHECK(exchanged == std::vector<std::string>{"h.0/attn.proj.sum", "h.0/mlp.down.sum",
                                                "h.1/attn.proj.sum", "h.1/mlp.down.sum",
                                                "head/logits:parts"});
  }
}

// A plan without one of its sums: over the ranks of an axis that has one.
void RequireSums(const AssembledRun& run, const std::string& name, int expected) {
  const StepPlan& plan = run.plans.Of(name);
  for (const Axis axis : {Axis::kContext, Axis::kShard}) {
    REQUIRE(FindViolations(plan, run.layout.mesh, 1).empty());
    int sums = 0;
    for (size_t b = 0; b < plan.bodies.size(); ++b)
      for (size_t o = 0; o < plan.bodies[b].ops.size(); ++o) {
        StepPlan wrong = plan;
        PlanOp& op = wrong.bodies[b].ops[o];
        auto* const sum = std::get_if<AllReduceOp<View>>(&op.op);
        if (sum == nullptr) continue;
        sum->axes = axis;
        INFO(name << " " << op.label);
        const Violations found = FindViolations(wrong, run.layout.mesh, 1);
        REQUIRE(!found.empty());
        CHECK_THAT(found.front().message,
                   Catch::Matchers::Contains("lacks a sum over the ranks of tensor"));
        ++sums;
      }
    CHECK(sums == expected);
  }
}

TEST_CASE("a sum that is left out, or goes over other ranks, is seen before the plan runs") {
  const Trial trial = TensorTrial(ModelConfig::Family::kLlama, Precision::kBf16, 2, 2);
  const AssembledRun run = InferenceRun(trial);
  for (const char* name : {"decode_3", "prefill_24"}) RequireSums(run, name, 4);
}

TEST_CASE("so it is where a GPU takes a product with what is around it as one op") {
  for (const auto family :
       {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama, ModelConfig::Family::kQwen3}) {
    const Trial trial = TensorTrial(family, Precision::kBf16, 2, 2);
    const AssembledRun run =
        Assemble(trial.config, trial.world, {.backend = Backend::kCuda}, {"train", "inference"});
    const StepPlan& plan = run.plans.Of("decode_1");
    int rows = 0;
    for (const Body& body : plan.bodies)
      for (const PlanOp& op : body.ops) rows += std::holds_alternative<RowLinearOp<View>>(op.op);
    CHECK(rows == 8);  // four products of a layer
    RequireSums(run, "decode_1", 4);
  }
}

// So are columns that are gathered over other ranks.
TEST_CASE("logits of a part of the vocabulary are seen before the plan runs") {
  const Trial trial = TensorTrial(ModelConfig::Family::kLlama, Precision::kBf16, 2, 2);
  const AssembledRun run = InferenceRun(trial);
  int found = 0;
  for (const char* name : {"decode_3", "prefill_24"}) {
    const StepPlan& plan = run.plans.Of(name);
    for (size_t b = 0; b < plan.bodies.size(); ++b)
      for (size_t o = 0; o < plan.bodies[b].ops.size(); ++o) {
        if (plan.bodies[b].ops[o].label != "head/logits:parts") continue;
        StepPlan wrong = plan;
        std::get<AllGatherOp<View>>(wrong.bodies[b].ops[o].op).axes = Axis::kShard;
        INFO(name);
        const Violations violations = FindViolations(wrong, run.layout.mesh, 1);
        REQUIRE(!violations.empty());
        CHECK_THAT(violations.front().message,
                   Catch::Matchers::Contains("is not the same on the ranks of tensor"));
        ++found;
      }
  }
  CHECK(found == 2);
}

TEST_CASE("without exact bits logits are near, with experts, too") {
  Trial trial = TensorTrial(ModelConfig::Family::kLlama, Precision::kFp32, 2);
  trial.config.inference.exact = false;
  static_cast<void>(RequireLogits(trial));
  trial = TensorTrial(ModelConfig::Family::kQwen3Moe, Precision::kFp32, 2);
  trial.config.model.ffn.reset();
  trial.config.model.moe = {.experts = 8, .top_k = 3, .ffn = 16};
  trial.config.inference.exact = false;
  static_cast<void>(RequireLogits(trial));
}

}  // namespace
}  // namespace millrace::test
