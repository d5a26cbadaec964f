// Which ops of a plan form the magnitudes that linears in FP8 are quantized by, and of what.
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <utility>

#include "runtime/plan/check/checker.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

using Family = ModelConfig::Family;

Base BaseOf(Family family, Recompute recompute, int world, LinearEncoding linear,
            int64_t accumulate = 1) {
  Base base = MakeBase(family, family == Family::kGpt2, Precision::kBf16, world, accumulate);
  Config& config = base.trial.config;
  config.precision.linear = linear;
  config.memory.recompute = recompute;
  config.model.d_model = 144;
  config.model.heads = 3;
  config.model.head_dim = 48;
  config.model.kv_heads = family == Family::kGpt2 ? 3 : 1;
  config.model.ffn = 160;
  config.model.seq_len = 48;
  config.train.micro_batch = 4;
  return base;
}

// Of an op that forms a magnitude: whose, and where it leaves it.
struct Formed {
  View of, magnitude;
};
Formed FormedBy(const KernelOp& op) {
  const auto* norm = std::get_if<NormOp<View>>(&op);
  const auto* norm_grad = std::get_if<NormGradOp<View>>(&op);
  const auto* activation = std::get_if<ActivationOp<View>>(&op);
  const auto* activation_grad = std::get_if<ActivationGradOp<View>>(&op);
  const auto* product = std::get_if<MatmulOp<View>>(&op);
  const auto* sum = std::get_if<ColumnSumOp<View>>(&op);
  if (norm != nullptr) return {norm->out, norm->magnitude};
  if (norm_grad != nullptr) return {norm_grad->d_x, norm_grad->magnitude};
  if (activation != nullptr) return {activation->out, activation->magnitude};
  if (activation_grad != nullptr) return {activation_grad->d_x, activation_grad->magnitude};
  if (product != nullptr) return {product->out, product->magnitude};
  if (sum != nullptr) return {sum->x, sum->magnitude};
  return {};
}

AssembledRun RunOf(const Base& base, int world, Backend backend) {
  BackendTraits traits = TestRanks().Traits(world);
  traits.backend = backend;
  return Assemble(base.trial.config, world, traits, {"train", "eval"});
}

// How many operands are quantized by a magnitude, and how many are looked at for one, by the end of
// their label.
struct Count {
  std::map<std::string, int> by_magnitude, looking;
};
Count CountIn(const StepPlan& plan, Phase phase) {
  Count count;
  for (const Body& body : plan.bodies) {
    if (body.phase != phase) continue;
    for (const PlanOp& op : body.ops)
      if (const auto* quantize = std::get_if<QuantizeOp<View>>(&op.op))
        ++(quantize->magnitude ? count.by_magnitude
                               : count.looking)[op.label.substr(op.label.rfind(':') + 1)];
  }
  return count;
}

// Each magnitude that an op quantizes by is of what the op quantizes.
int RequirePairs(const StepPlan& plan) {
  std::map<int64_t, View> formed;
  int pairs = 0;
  for (const Body& body : plan.bodies)
    for (const PlanOp& op : body.ops) {
      INFO(op.label);
      if (const Formed found = FormedBy(op.op); found.magnitude) {
        CHECK_FALSE(formed.contains(found.magnitude.offset));
        formed[found.magnitude.offset] = found.of;
      }
      const auto* quantize = std::get_if<QuantizeOp<View>>(&op.op);
      if (quantize == nullptr || !quantize->magnitude) continue;
      REQUIRE(formed.contains(quantize->magnitude.offset));
      CHECK(formed.at(quantize->magnitude.offset) == quantize->x);
      ++pairs;
    }
  return pairs;
}

TEST_CASE("what writes an operand of FP8 forms its magnitude, and quantizing goes by that",
          "[fp8]") {
  using Labels = std::map<std::string, int>;
  for (const Backend backend : {Backend::kCpu, Backend::kCuda})
    for (const Family family : {Family::kGpt2, Family::kLlama}) {
      const Base base = BaseOf(family, Recompute::kNone, 1, LinearEncoding::kFp8Tensor);
      const int layers = static_cast<int>(base.trial.config.model.layers);
      const AssembledRun run = RunOf(base, 1, backend);
      const StepPlan& train = run.plans.Of("train");
      INFO(base.name << ", " << (backend == Backend::kCpu ? "CPU" : "CUDA"));
      // Not what attention gives. Its gradient is looked at where there is no sum of it: a bias's.
      const Count forward = CountIn(train, Phase::kForward),
                  backward = CountIn(train, Phase::kBackward);
      CHECK(forward.by_magnitude == Labels{{"quantize_x", 3 * layers}});
      CHECK(forward.looking == Labels{{"quantize_x", layers}, {"quantize_weight", 4 * layers}});
      const bool sums = family == Family::kGpt2;
      CHECK(backward.by_magnitude == Labels{{"quantize_d_y", (sums ? 4 : 3) * layers}});
      CHECK(backward.looking ==
            (sums ? Labels{{"quantize_weight", 4 * layers}}
                  : Labels{{"quantize_d_y", layers}, {"quantize_weight", 4 * layers}}));
      CHECK(RequirePairs(train) == (sums ? 7 : 6) * layers);
      CHECK(RequirePairs(run.plans.Of("eval")) == 3 * layers);
    }
}

// By what the ops have of activations: how many store one, how many quantize one as it is formed.
std::pair<int, int> StoredAndQuantized(const StepPlan& plan) {
  int stored = 0, quantized = 0;
  for (const Body& body : plan.bodies)
    for (const PlanOp& op : body.ops) {
      const auto* activation = std::get_if<ActivationOp<View>>(&op.op);
      const auto* product = std::get_if<MatmulOp<View>>(&op.op);
      const auto* quantize = std::get_if<QuantizeOp<View>>(&op.op);
      stored += activation != nullptr && activation->out;
      stored += product != nullptr &&
                (product->epilogue == Epilogue::kGelu || product->epilogue == Epilogue::kBiasGelu);
      quantized += quantize != nullptr && quantize->activation;
    }
  return {stored, quantized};
}

TEST_CASE("an activation that is quantized in blocks alone is formed as it is, and not stored",
          "[fp8]") {
  for (const Backend backend : {Backend::kCpu, Backend::kCuda})
    for (const Family family : {Family::kGpt2, Family::kLlama})
      for (const LinearEncoding linear :
           {LinearEncoding::kFp8Tensor, LinearEncoding::kFp8Block, LinearEncoding::kCompute}) {
        const Base base = BaseOf(family, Recompute::kNone, 1, linear);
        const int layers = static_cast<int>(base.trial.config.model.layers);
        const AssembledRun run = RunOf(base, 1, backend);
        INFO(base.name << ", " << (backend == Backend::kCpu ? "CPU" : "CUDA"));
        // The CPU makes the blocks of the backward's sums where they are first asked for.
        const int forms = backend == Backend::kCpu ? 2 : 1;
        CHECK(StoredAndQuantized(run.plans.Of("train")) == (linear == LinearEncoding::kFp8Block
                                                                ? std::pair{0, forms * layers}
                                                                : std::pair{layers, 0}));
      }
}

TEST_CASE("magnitudes of what is computed again are formed again", "[fp8]") {
  for (const Recompute recompute : {Recompute::kNorms, Recompute::kBlock}) {
    const Base base = BaseOf(Family::kLlama, recompute, 2, LinearEncoding::kFp8Tensor);
    const int layers = static_cast<int>(base.trial.config.model.layers);
    const AssembledRun run = RunOf(base, 2, Backend::kCuda);
    INFO(base.name);
    const Count backward = CountIn(run.plans.Of("train"), Phase::kBackward);
    CHECK(backward.by_magnitude.at("quantize_d_y") == 3 * layers);
    CHECK(backward.by_magnitude.at("quantize_x") >= 2 * layers);
    CHECK(RequirePairs(run.plans.Of("train")) > 8 * layers);
  }
}

TEST_CASE("blocks have no use for magnitudes, nor has a run without FP8", "[fp8]") {
  for (const LinearEncoding linear : {LinearEncoding::kFp8Block, LinearEncoding::kCompute}) {
    const Base base = BaseOf(Family::kGpt2, Recompute::kNone, 1, linear);
    const AssembledRun run = RunOf(base, 1, Backend::kCuda);
    for (const Body& body : run.plans.Of("train").bodies)
      for (const PlanOp& op : body.ops) {
        INFO(op.label);
        CHECK_FALSE(FormedBy(op.op).magnitude);
        CHECK(op.label != "magnitudes:zero");
      }
  }
}

TEST_CASE("magnitudes are zeroed by one op of each microbatch, without which the plan is refused",
          "[fp8]") {
  const Base base = BaseOf(Family::kGpt2, Recompute::kNone, 2, LinearEncoding::kFp8Tensor, 2);
  const AssembledRun run = RunOf(base, 2, Backend::kCuda);
  StepPlan plan = run.plans.Of("train");
  const Mesh mesh = MeshOf(base.trial.config, 2);
  CHECK(FindViolations(plan, mesh, 2).empty());
  for (Body& body : plan.bodies) {
    int zeroes = 0;
    for (PlanOp& op : body.ops) {
      if (op.label != "magnitudes:zero") continue;
      ++zeroes;
      std::get<ZeroRangesOp<View>>(op.op).ranges = std::make_shared<const std::vector<Range>>();
    }
    CHECK(zeroes == (body.phase == Phase::kForward ? 1 : 0));
  }
  const Violations found = FindViolations(plan, mesh, 2);
  REQUIRE_FALSE(found.empty());
  CHECK(found.front().kind == ViolationKind::kUndefined);
  CHECK_THAT(found.front().message, Catch::Matchers::Contains("magnitude"));
}

}  // namespace
}  // namespace millrace::test
