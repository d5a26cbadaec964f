// Training and inference with linears in FP8: no option changes a bit, generation has training's
// bits, and what cannot be promised is refused.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/step_scalars.h"
#include "runtime/plan/cost/cost_model.h"
#include "runtime/run/eval/score.h"
#include "runtime/run/generate/inference_plans.h"
#include "tests/system/generate/cached_sequences.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

using Family = ModelConfig::Family;

void Widen(Config& config) {
  WidenPastBlocks(config);
  config.model.seq_len = 50;
  config.train.micro_batch = 3;
}

void CheckOptions(const Base& base) {
  INFO(base.name);
  const Outcome reference = RunTrial(base.trial);
  REQUIRE(reference.scalars.back().adam_t == base.trial.steps);
  RequireCounters(base.trial, reference);
  Trial compute = base.trial;
  compute.config.precision.linear = LinearEncoding::kCompute;
  const Outcome plain = RunTrial(compute);
  CHECK(plain.Bits() != reference.Bits());
  CHECK(plain.plan_hash != reference.plan_hash);
  for (const Option& option : BitwiseOptions()) {
    INFO(option.name);
    Trial trial = base.trial;
    option.set(trial);
    if (!Valid(trial)) continue;
    const Outcome outcome = RunTrial(trial);
    CHECK(outcome.Bits() == reference.Bits());
    RequireCounters(trial, outcome);
    if (!option.applies(trial)) continue;
    CHECK((outcome.plan_hash != reference.plan_hash) == (option.reach != Reach::kRun));
    CHECK(option.governs(outcome) != option.governs(reference));
  }
}

TEST_CASE("linears in FP8: no option changes a bit, on one to three ranks", "[fp8]") {
  for (const LinearEncoding linear : kFloat8Encodings)
    for (const Family family : {Family::kGpt2, Family::kLlama})
      for (const int world : {1, 2, 3})
        CheckOptions(MakeFloat8Base(family, linear,
                                    world == 2 ? Precision::kFp32 : Precision::kBf16All, world, 3));
}

TEST_CASE("linears in FP8, larger than a block: no option changes a bit", "[fp8]") {
  for (const LinearEncoding linear : kFloat8Encodings) {
    Base base = MakeFloat8Base(Family::kLlama, linear, Precision::kBf16, 2, 2);
    Widen(base.trial.config);
    base.trial.steps = 2;
    CheckOptions(base);
  }
}

// Of a body, by what they quantize.
std::map<std::string, int> Quantized(const StepPlan& plan, Phase phase) {
  std::map<std::string, int> count;
  for (const Body& body : plan.bodies)
    for (const PlanOp& op : body.ops)
      if (body.phase == phase && std::holds_alternative<QuantizeOp<View>>(op.op))
        ++count[op.label.substr(op.label.rfind(':') + 1)];
  return count;
}

TEST_CASE("each form of an operand is quantized once", "[fp8]") {
  using Count = std::map<std::string, int>;
  for (const LinearEncoding linear : kFloat8Encodings) {
    Base base = MakeFloat8Base(Family::kGpt2, linear, Precision::kBf16, 1, 1);
    const int linears = 4 * static_cast<int>(base.trial.config.model.layers);
    const AssembledRun run = PlanOf(base.trial);
    const StepPlan& plan = run.plans.Of("train");
    CHECK(Quantized(plan, Phase::kForward) ==
          Count{{"quantize_x", linears}, {"quantize_weight", linears}});
    // A payload with one scale is its own transpose; blocks along rows are another form.
    if (linear == LinearEncoding::kFp8Tensor)
      CHECK(Quantized(plan, Phase::kBackward) ==
            Count{{"quantize_d_y", linears}, {"quantize_weight", linears}});
    else
      CHECK(Quantized(plan, Phase::kBackward) == Count{{"quantize_d_y", 2 * linears},
                                                       {"quantize_x", linears},
                                                       {"quantize_weight", linears}});
  }
}

// The golden runs cannot tell: powers of two move no number that is in the format's normal range.
TEST_CASE("blocks lie along what a product sums, and those of weights are square", "[fp8]") {
  Base base = MakeFloat8Base(Family::kLlama, LinearEncoding::kFp8Block, Precision::kBf16, 1, 1);
  Widen(base.trial.config);
  const auto dims = [](const View& view) {
    return std::pair{view.layout.dims[0], view.layout.dims[1]};
  };
  const auto blocks = [](int64_t n) { return (n + 127) / 128; };
  int forward = 0, d_input = 0, d_weight = 0;
  const AssembledRun run = PlanOf(base.trial);
  for (const Body& body : run.plans.Of("train").bodies)
    for (const PlanOp& op : body.ops) {
      const auto* product = std::get_if<MatmulOp<View>>(&op.op);
      if (product == nullptr || product->scaling == Scaling::kNone) continue;
      INFO(op.label);
      const auto [m, k] = dims(product->a);
      const int64_t n = product->b.layout.dims[1];
      CHECK(dims(product->a_scales) == std::pair{m, blocks(k)});
      const bool weight_grad = op.label.ends_with(":d_weight");
      CHECK(dims(product->b_scales) == std::pair{blocks(k), weight_grad ? n : blocks(n)});
      if (weight_grad) CHECK(k == 150);  // rows of a microbatch
      ++(weight_grad ? d_weight : op.label.ends_with(":d_input") ? d_input : forward);
    }
  const int linears = 4 * static_cast<int>(base.trial.config.model.layers);
  CHECK(forward == linears);
  CHECK(d_input == linears);
  CHECK(d_weight == linears);
}

TEST_CASE("ranks that share sequences or have experts of their own train with linears in FP8",
          "[fp8]") {
  for (const LinearEncoding linear : kFloat8Encodings) {
    Base context = MakeFloat8Base(Family::kLlama, linear, Precision::kBf16, 2, 2);
    context.trial.config.model.seq_len = 12;
    context.trial.config.parallel.context = 2;
    Base experts = MakeFloat8Base(Family::kLlama, linear, Precision::kBf16, 2, 2);
    MakeExperts(experts, 2);
    for (const Base& base : {context, experts}) {
      INFO(base.name);
      REQUIRE(Valid(base.trial));
      const Outcome reference = RunTrial(base.trial);
      Trial checked = base.trial;
      checked.config.execution.checked = true;
      checked.config.memory.recompute = Recompute::kBlock;
      CHECK(RunTrial(checked).Bits() == reference.Bits());
      Trial compute = base.trial;
      compute.config.precision.linear = LinearEncoding::kCompute;
      const Outcome plain = RunTrial(compute);
      CHECK(plain.Bits() != reference.Bits());
      for (size_t step = 0; step < plain.scalars.size(); ++step)
        CHECK(reference.scalars[step].loss == Approx(plain.scalars[step].loss).epsilon(0.02));
    }
  }
}

TEST_CASE("with FP8 in blocks, prefill and decode have the training forward's bits", "[fp8]") {
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kNemotronH})
    for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
      Trial trial = GeneratingTrial(family, precision);
      trial.config.precision.linear = LinearEncoding::kFp8Block;
      static_cast<void>(RequireLogits(trial));
    }
}

TEST_CASE("so they have where training gathers weights in FP8, on one rank and on two", "[fp8]") {
  for (const Family family : {Family::kGpt2, Family::kLlama})
    for (const Precision precision : {Precision::kFp32, Precision::kBf16})
      for (const int world : {1, 2}) {
        Trial trial = GeneratingTrial(family, precision, world);
        trial.config.precision.linear = LinearEncoding::kFp8Block;
        const Generated expected = RequireLogits(trial);
        trial.config.precision.gather = WeightGather::kLinear;
        static_cast<void>(RequireLogits(trial, &expected));
      }
}

TEST_CASE("with FP8 in blocks, a sequence's score does not depend on those beside it", "[fp8]") {
  Base base = MakeFloat8Base(Family::kLlama, LinearEncoding::kFp8Block, Precision::kBf16, 1, 1);
  Widen(base.trial.config);
  const Config& config = base.trial.config;
  base.trial.plans = {"train", "eval", "score"};
  const int64_t window = config.model.seq_len + 1;
  RunEngines(base.trial, [&](RankContext& rank) {
    rank.engine.InitWeights(7);
    std::vector<int32_t> tokens = BatchOf(config, 1, 0, 0);
    const std::vector<double> together = TokenLosses(rank.engine, tokens);
    double sum = 0;
    for (const double loss : together) sum += loss;
    MR_CHECK(sum == rank.engine.EvalLossSum(tokens), "scores sum to the loss of evaluation");
    // The second alone: others are the same token over and over.
    for (int64_t i = 0; i < config.train.micro_batch * window; ++i)
      if (i / window != 1) tokens[static_cast<size_t>(i)] = 3;
    const std::vector<double> alone = TokenLosses(rank.engine, tokens);
    const auto begin = static_cast<std::ptrdiff_t>(config.model.seq_len), end = 2 * begin;
    MR_CHECK(std::equal(together.begin() + begin, together.begin() + end, alone.begin() + begin),
             "the second sequence's terms");
    MR_CHECK(!std::equal(together.begin(), together.begin() + begin, alone.begin()),
             "the first sequence is another");
  });
}

std::string RefusalOf(const std::function<void()>& plan) {
  try {
    plan();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kConfig);
    return error.what();
  }
  return "no error";
}

TEST_CASE("what a scale of a whole tensor cannot promise is refused by name", "[fp8]") {
  using Catch::Matchers::Contains;
  Trial trial = GeneratingTrial(Family::kLlama, Precision::kBf16);
  trial.config.precision.linear = LinearEncoding::kFp8Tensor;
  CHECK_THAT(RefusalOf([&] { InferenceRun(trial); }),
             Contains("precision.linear is fp8_tensor") && Contains("fp8_block or compute"));
  for (const char* plan : {"score", "score_likeliest"}) {
    trial.plans = {plan};
    CHECK_THAT(RefusalOf([&] { PlanOf(trial); }),
               Contains("precision.linear is fp8_tensor") && Contains("fp8_block and compute"));
    trial.config.precision.linear = LinearEncoding::kFp8Block;
    PlanOf(trial);
    trial.config.precision.linear = LinearEncoding::kFp8Tensor;
  }
}

BackendTraits CudaTraits() {
  BackendTraits cuda = TestRanks().Traits(1);
  cuda.backend = Backend::kCuda;
  return cuda;
}

// Multiples of 16, past a block of 128 and no multiple of it.
void WidenForCuda(Config& config) {
  config.model.d_model = 144;
  config.model.heads = 3;
  config.model.head_dim = 48;
  config.model.kv_heads = config.model.family == Family::kGpt2 ? 3 : 1;
  config.model.ffn = 160;
  config.model.seq_len = 48;
  config.train.micro_batch = 4;
}

// Each microbatch's backward sums weights along their other dim: recomputed or not, once each.
TEST_CASE("on CUDA weights gathered in FP8 are turned once in each backward, and else only read",
          "[fp8]") {
  for (const LinearEncoding linear : kFloat8Encodings)
    for (const Recompute recompute : {Recompute::kNone, Recompute::kBlock}) {
      Base base = MakeFloat8Base(Family::kGpt2, linear, Precision::kBf16, 2, 3);
      Config& config = base.trial.config;
      WidenForCuda(config);
      config.memory.recompute = recompute;
      const auto planned = [&](WeightGather gather) {
        config.precision.gather = gather;
        return Assemble(config, 2, CudaTraits(), {"train", "eval"});
      };
      const AssembledRun wide = planned(WeightGather::kCompute),
                         narrow = planned(WeightGather::kLinear);
      const StepPlan& train = narrow.plans.Of("train");
      const int linears = 4 * static_cast<int>(config.model.layers), variants = 3;
      for (const Phase phase : {Phase::kForward, Phase::kBackward})
        CHECK_FALSE(Quantized(train, phase).contains("quantize_weight"));
      const auto turns = [](const StepPlan& plan, Phase phase) {
        int count = 0;
        for (const Body& body : plan.bodies)
          for (const PlanOp& op : body.ops)
            count += body.phase == phase && std::holds_alternative<TurnOp<View>>(op.op);
        return count;
      };
      CHECK(turns(train, Phase::kForward) == 0);
      CHECK(turns(train, Phase::kBackward) == variants * linears);
      CHECK(turns(narrow.plans.Of("eval"), Phase::kForward) == 0);
      // Operands lie as in a plan that quantizes them.
      const auto operands = [](const StepPlan& plan) {
        std::vector<std::string> layouts;
        for (const Body& body : plan.bodies)
          for (const PlanOp& op : body.ops)
            if (const auto* product = std::get_if<MatmulOp<View>>(&op.op);
                product != nullptr && product->scaling != Scaling::kNone)
              for (const View& view :
                   {product->a, product->a_scales, product->b, product->b_scales})
                layouts.push_back(op.label + " " + ToString(view.layout));
        return layouts;
      };
      CHECK(operands(train) == operands(wide.plans.Of("train")));
      int64_t weights = 0;
      for (const ParamPlacement& param : narrow.layout.params)
        if (narrow.layout.IsBlock(param.flat) && param.dims.size() == 2) weights += param.numel();
      const auto copied = [](const AssembledRun& run) {
        const StepPlan& plan = run.plans.Of("train");
        return CountersOf(plan, plan.schedule, run.layout.mesh).copied_bytes;
      };
      CHECK(copied(narrow) - copied(wide) == 3 * weights);
    }
}

TEST_CASE("on CUDA one op makes both forms of an operand, each in lines of what is summed",
          "[fp8]") {
  using Count = std::map<std::string, int>;
  for (const LinearEncoding linear : kFloat8Encodings) {
    Base base = MakeFloat8Base(Family::kGpt2, linear, Precision::kBf16, 1, 1);
    WidenForCuda(base.trial.config);
    const int linears = 4 * static_cast<int>(base.trial.config.model.layers);
    const AssembledRun run = Assemble(base.trial.config, 1, CudaTraits(), {"train", "eval"});
    const StepPlan& train = run.plans.Of("train");
    CHECK(Quantized(train, Phase::kForward) ==
          Count{{"quantize_x", linears}, {"quantize_weight", linears}});
    CHECK(Quantized(train, Phase::kBackward) ==
          Count{{"quantize_d_y", linears}, {"quantize_weight", linears}});
    const auto forms = [](const StepPlan& plan) {
      int turned = 0;
      for (const Body& body : plan.bodies)
        for (const PlanOp& op : body.ops) {
          if (const auto* quantize = std::get_if<QuantizeOp<View>>(&op.op))
            turned += static_cast<bool>(quantize->turned);
          const auto* product = std::get_if<MatmulOp<View>>(&op.op);
          if (product == nullptr || product->scaling == Scaling::kNone) continue;
          INFO(op.label);
          CHECK(product->a.layout.strides[1] == 1);
          CHECK(product->b.layout.strides[0] == 1);
        }
      return turned;
    };
    CHECK(forms(train) == 2 * linears);
    CHECK(forms(run.plans.Of("eval")) == 0);  // no gradient sums the other dim
  }
}

TEST_CASE("on CUDA what cuBLASLt does not multiply in FP8 is refused by name", "[fp8]") {
  using Catch::Matchers::Contains;
  for (const LinearEncoding linear : kFloat8Encodings) {
    Base base = MakeFloat8Base(Family::kLlama, linear, Precision::kBf16, 1, 1);
    Config& config = base.trial.config;
    WidenForCuda(config);
    const auto refusal = [&](const PlanSelection& plans) {
      return RefusalOf([&] { Assemble(config, 1, CudaTraits(), plans); });
    };
    CHECK(refusal({"train"}) == "no error");
    config.train.micro_batch = 1;
    config.model.seq_len = 40;
    for (const std::string plan : {"train", "eval", "generate"})
      CHECK_THAT(refusal({plan}), Contains("model.seq_len is 40") && Contains("has 40 rows") &&
                                      Contains("takes multiples of 16") &&
                                      Contains("precision.linear=compute"));
    config.model.seq_len = 96;
    CHECK(refusal({"train"}) == "no error");
    config.parallel.context = 4;
    config.parallel.shard = 1;
    CHECK_THAT(RefusalOf([&] { Assemble(config, 4, CudaTraits(), {"train"}); }),
               Contains("parallel.context 4") && Contains("has 24 rows"));
    config.parallel.context = 1;
    WidenForCuda(config);
    config.model.ffn = 148;
    CHECK_THAT(refusal({"train"}),
               Contains("h.0") && Contains("x 296 x") && Contains("multiples of 16 are allowed"));
    config.precision.linear = LinearEncoding::kCompute;
    CHECK(refusal({"train"}) == "no error");
  }
  Trial trial = GeneratingTrial(Family::kLlama, Precision::kBf16);
  trial.config.precision.linear = LinearEncoding::kFp8Block;
  CHECK_THAT(
      RefusalOf([&] { Assemble(trial.config, 1, CudaTraits(), {std::string(kInferencePlans)}); }),
      Contains("precision.linear is fp8_block") && Contains("takes compute"));
}

TEST_CASE("a NaN or an infinity in a weight passes through FP8, stops the update and is named",
          "[fp8]") {
  for (const LinearEncoding linear : kFloat8Encodings)
    for (const auto& [bad, gather] : {std::pair{NAN, WeightGather::kCompute},
                                      {INFINITY, WeightGather::kCompute},
                                      {NAN, WeightGather::kLinear},
                                      {INFINITY, WeightGather::kLinear}}) {
      Base base = MakeFloat8Base(Family::kLlama, linear, Precision::kFp32, 1, 1);
      base.trial.config.precision.gather = gather;
      RunEngines(base.trial, [&](RankContext& rank) {
        rank.engine.InitWeights(7);
        MR_CHECK(StepOn(rank, base.trial.config, 0).applied == 1, "a step of finite weights");
        // Of a block: its largest parameters are matrices.
        std::vector<float> shard = rank.engine.ReadShard("master", FlatId{1});
        *std::max_element(shard.begin() + std::ssize(shard) / 2, shard.end()) = bad;
        rank.engine.WriteShard("master", FlatId{1}, shard);
        const StepScalars scalars = StepOn(rank, base.trial.config, 1);
        MR_CHECK(scalars.applied == 0, "a step with such a weight");
        MR_CHECK_EQ(scalars.offender_unit, kOffenderLoss, "what is not finite");
        MR_CHECK_EQ(scalars.offender_rank, 0, "where");
      });
    }
}

}  // namespace
}  // namespace millrace::test
