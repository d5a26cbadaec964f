#include "runtime/plan/graph/gradients.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "kernels/cpu/cpu_kernels.h"
#include "runtime/base/error.h"
#include "runtime/plan/lower/lower.h"
#include "runtime/plan/nodes/activation.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/attention/attention.h"
#include "runtime/plan/nodes/embedding.h"
#include "runtime/plan/nodes/head.h"
#include "runtime/plan/nodes/linear.h"
#include "runtime/plan/nodes/norm.h"
#include "tests/support/golden.h"
#include "tests/support/program_interpreter.h"
#include "tests/support/tiny_models.h"

namespace millrace {
namespace {

using test::ForwardOf;
using test::ProgramInterpreter;
using test::TinyGpt2;
using test::TinyLlama;

const std::string kGolden = "tests/runtime/plan/golden/";
constexpr Recompute kPolicies[] = {Recompute::kNone, Recompute::kNorms, Recompute::kBlock};

TEST_CASE("gradients and recomputation print as golden text", "[plan][gradients]") {
  const auto text = [](const ModelOptions& options, Recompute policy) {
    SemanticGraph graph = AddGradients(ForwardOf(options), policy);
    graph.prologue.clear();
    graph.forward.clear();
    return ToString(graph);
  };
  test::RequireGolden(kGolden + "gpt2_gradients_none.txt", text(TinyGpt2(2), Recompute::kNone));
  test::RequireGolden(kGolden + "gpt2_gradients_norms.txt", text(TinyGpt2(2), Recompute::kNorms));
  test::RequireGolden(kGolden + "gpt2_gradients_block.txt", text(TinyGpt2(2), Recompute::kBlock));
  test::RequireGolden(kGolden + "llama_gradients_none.txt", text(TinyLlama(2), Recompute::kNone));
  test::RequireGolden(kGolden + "llama_gradients_norms.txt", text(TinyLlama(2), Recompute::kNorms));
  test::RequireGolden(kGolden + "llama_gradients_block.txt", text(TinyLlama(2), Recompute::kBlock));
}

TEST_CASE("recomputation repeats what gradients need, from values that were saved",
          "[plan][gradients]") {
  ModelOptions options = GENERATE(TinyGpt2(4), TinyLlama(4));
  options.blocks_per_unit = GENERATE(1, 2, 3);
  const Recompute policy = GENERATE(Recompute::kNorms, Recompute::kBlock);
  const SemanticGraph graph = AddGradients(ForwardOf(options), policy);

  std::map<int32_t, const Node*> producers;
  std::set<int32_t> read_later;
  for (const Node& node : graph.forward)
    for (const ValueId out : node.outputs)
      if (out) producers[out.value] = &node;
  int recomputed = 0;
  for (const Node& node : graph.backward) {
    recomputed += node.recomputed;
    for (const ValueId in : node.inputs) {
      if (!in) continue;
      read_later.insert(in.value);
      const auto found = producers.find(in.value);
      if (found == producers.end() || graph.value(in).role != ValueRole::kActivation) continue;
      const Node& producer = *found->second;  // a value of the forward is read as it was saved
      const std::string& unit = graph.unit_names[static_cast<size_t>(producer.unit.value)];
      CAPTURE(node.label, producer.label);
      if (policy == Recompute::kBlock)
        CHECK((producer.unit != node.unit || unit == "head"));
      else
        CHECK(((producer.kind != &kNormNode && producer.kind != &kActivationNode) ||
               producer.unit != node.unit || unit == "head"));
    }
  }
  for (const Node& node : graph.backward) {
    if (!node.recomputed) continue;
    bool used = false;
    for (const ValueId out : node.outputs) used |= out && read_later.count(out.value) > 0;
    CAPTURE(node.label);
    CHECK(used);
    CHECK(graph.unit_names[static_cast<size_t>(node.unit.value)].starts_with("h."));
  }
  // Per block: two norms and one activation; everything of the unit except its
  // last linear and last sum.
  const int blocks = 4, nodes_per_block = options.family == Name(ModelFamily::kGpt2) ? 10 : 11;
  const int units = static_cast<int>(graph.unit_names.size()) - 2;
  CHECK(recomputed ==
        (policy == Recompute::kNorms ? 3 * blocks : nodes_per_block * blocks - 2 * units));
}

TEST_CASE("each unit computes again what it is told to", "[plan][gradients]") {
  const SemanticGraph forward = ForwardOf(TinyLlama(4));
  std::vector<UnitRecompute> units(forward.unit_names.size());
  const auto unit = [&](const std::string& name) -> UnitRecompute& {
    const auto found = std::find(forward.unit_names.begin(), forward.unit_names.end(), name);
    return units[static_cast<size_t>(found - forward.unit_names.begin())];
  };
  unit("h.0").cheap = {&kNormNode};
  unit("h.1").cheap = {&kActivationNode};
  unit("h.3") = {.cheap = {&kNormNode, &kActivationNode}, .dear = true};
  for (const char* name : {"embed", "head"})
    unit(name) = unit("h.3");  // never recomputed, whatever is asked
  std::map<std::string, std::map<const NodeDef*, int>> again;
  const SemanticGraph graph = AddGradients(forward, units);
  for (const Node& node : graph.backward)
    if (node.recomputed) ++again[graph.unit_names[static_cast<size_t>(node.unit.value)]][node.kind];
  CHECK(again.size() == 3);
  CHECK(again["h.0"] == std::map<const NodeDef*, int>{{&kNormNode, 2}});
  CHECK(again["h.1"] == std::map<const NodeDef*, int>{{&kActivationNode, 1}});
  CHECK(again["h.3"][&kNormNode] == 2);
  CHECK(again["h.3"][&kActivationNode] == 1);
  CHECK(again["h.3"][&kAttentionNode] == 1);
  CHECK(again["h.3"][&kLinearNode] == 3);  // the last one's result feeds no gradient
  units.pop_back();
  CHECK_THROWS_AS(AddGradients(forward, units), Error);
}

TEST_CASE("gradients need a training loss, once", "[plan][gradients]") {
  CHECK_THROWS_AS(AddGradients(ForwardOf(TinyGpt2(), HeadMode::kEvalLoss), Recompute::kNone),
                  Error);
  CHECK_THROWS_AS(AddGradients(ForwardOf(TinyGpt2(), HeadMode::kLogits), Recompute::kNone), Error);
  SemanticGraph twice = AddGradients(ForwardOf(TinyGpt2()), Recompute::kNone);
  CHECK_THROWS_AS(AddGradients(std::move(twice), Recompute::kNone), Error);
}

TEST_CASE(
    "training at less than the position table's length is refused: rows of its gradient would be "
    "undefined",
    "[plan][gradients]") {
  const std::unique_ptr<Model> model = MakeModel(TinyGpt2());  // 7 positions
  ForwardBuilder builder(model->spec(), {.batch = 2, .seq = 6}, DType::kF32, DType::kF32);
  model->EmitForward(builder, HeadMode::kTrainLoss);
  CHECK_THROWS_WITH(AddGradients(std::move(builder).Finish(), Recompute::kNone),
                    Catch::Matchers::Contains("embed/x"));
}

// x feeds three linears, one of them twice over; `spare` feeds nothing.
TEST_CASE("gradients of a value with several readers are summed, an unused parameter gets none",
          "[plan][gradients]") {
  ModelSpec spec;
  spec.family = "fan";
  spec.vocab = 5;
  const auto matrix = [](std::string name, int64_t rows) {
    return ParamSpec{
        .name = std::move(name), .dims = {rows, 3}, .padded_rows = rows, .init = InitKind::kNormal};
  };
  spec.units = {{"h.0", {matrix("table", 5), matrix("a", 3), matrix("b", 3), matrix("spare", 3)}}};
  ForwardBuilder builder(spec, {.batch = 1, .seq = 2}, DType::kF32, DType::kF32);
  builder.BeginUnit("h.0");
  const ValueId x = Embedding(builder, "table", "", "x");
  const ValueId a = Linear(builder, x, "a", "", "a"), b = Linear(builder, x, "b", "", "b");
  Head(builder, Add(builder, Add(builder, a, b, "ab"), x, "abx"), "table", HeadMode::kTrainLoss);
  const SemanticGraph graph = AddGradients(std::move(builder).Finish(), Recompute::kNone);
  std::vector<std::string> sums;
  for (const Node& node : graph.backward)
    if (node.kind == &kAddNode)
      for (const ValueId in : node.inputs) sums.push_back(graph.value(in).name);
  // d(abx) reaches x directly, then through b, then through a: reverse program order.
  CHECK(sums == std::vector<std::string>{"d(abx)", "d(x)#2", "d(x)#2+", "d(x)#3"});
  std::set<std::string> gradients;
  for (const Value& value : graph.values)
    if (value.role == ValueRole::kParamGrad) gradients.insert(value.name);
  CHECK(gradients == std::set<std::string>{"d(table)", "d(a)", "d(b)"});
  for (const ProgramBuffer& buffer : Lower(graph, {}).buffers)
    CHECK(buffer.name.find("spare") == std::string::npos);
}

// --- Numbers: the lowered program on the CPU kernels.

struct Inputs {
  std::vector<std::vector<float>> params;  // stored shapes, padding zero
  std::vector<int32_t> tokens;             // [B, T + extra]; one target is masked
};

constexpr int64_t kBatch = 2;

Inputs MakeInputs(const ModelSpec& spec, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Inputs inputs;
  for (const UnitSpec& unit : spec.units)
    for (const ParamSpec& param : unit.params) {
      std::vector<float> values(static_cast<size_t>(param.stored_numel()), 0.0f);
      const float base = param.init == InitKind::kOnes ? 1.0f : 0.0f;
      const float spread = param.dims.size() == 2 ? 0.4f : 0.2f;
      for (int64_t i = 0; i < param.numel(); ++i)
        values[static_cast<size_t>(i)] = base + spread * normal(random);
      inputs.params.push_back(std::move(values));
    }
  std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(spec.vocab) - 1);
  const InputSource source = SourcesOf(spec.inputs, spec.losses).front();
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t t = source.filled; t < spec.seq_len + source.extra; ++t)
      inputs.tokens.push_back(token(random));
    inputs.tokens.insert(inputs.tokens.end(), static_cast<size_t>(source.filled), -1);
  }
  inputs.tokens.back() = -1;  // read as a target only
  return inputs;
}

struct Outcome {
  double loss = 0;  // mean over valid tokens
  std::vector<std::vector<float>> gradients;
  bool operator==(const Outcome&) const = default;
};

Outcome RunProgram(const Program& program, const Inputs& inputs) {
  ProgramInterpreter interpreter(program, CpuKernels());
  const double inv_valid = 1.0 / static_cast<double>(inputs.tokens.size() - kBatch - 1);
  interpreter.scalars().inv_valid_tokens = inv_valid;
  interpreter.SetTokens(inputs.tokens);
  for (size_t i = 0; i < inputs.params.size(); ++i)
    interpreter.SetParam(ParamId{static_cast<int32_t>(i)}, inputs.params[i]);
  interpreter.Run();
  Outcome outcome{interpreter.loss() * inv_valid, {}};
  for (size_t i = 0; i < inputs.params.size(); ++i)
    outcome.gradients.push_back(interpreter.Gradient(ParamId{static_cast<int32_t>(i)}));
  return outcome;
}

const std::vector<ModelFamily> kNumeric = {ModelFamily::kGpt2, ModelFamily::kLlama,
                                           ModelFamily::kQwen3, ModelFamily::kNemotronH};

ModelOptions NumericOptions(ModelFamily family, bool tied, bool equal = true) {
  ModelOptions options = family == ModelFamily::kGpt2        ? TinyGpt2(2)
                         : family == ModelFamily::kQwen3     ? test::TinyQwen3(2)
                         : family == ModelFamily::kNemotronH ? test::TinyNemotronH()
                                                             : TinyLlama(2);
  if (!equal && family != ModelFamily::kNemotronH) {
    const bool qk_norm = options.blocks[0].Find<AttentionShape>()->qk_norm;
    options = test::Unequal(options);
    for (BlockShape& block : options.blocks)
      if (auto* attention = block.Find<AttentionShape>()) attention->qk_norm = qk_norm;
  }
  options.tied = tied;
  return options;
}

// Along a random direction v of one parameter: <gradient, v> against the central difference of the
// loss, extrapolated from two steps h and h/2 so that its error is of order h^4. In f32 the loss is
// known to about 1e-6, hence 1e-6 / h = 1e-4 of the quotient.
TEST_CASE("gradients are the derivatives of the loss", "[plan][gradients][numeric]") {
  ModelOptions options =
      NumericOptions(GENERATE(from_range(kNumeric)), GENERATE(true, false), GENERATE(true, false));
  if (options.family == Name(ModelFamily::kQwen3) && GENERATE(true, false))
    options.mtp = {.depth = 1, .loss_scale = 0.7, .block = options.blocks.front()};
  const std::unique_ptr<Model> model = MakeModel(options);
  const Program train =
      Lower(AddGradients(ForwardOf(options), Recompute::kNone), {.loss_chunk_rows = 5});
  // Evaluation leaves out what predicts further.
  const bool further = options.mtp.depth > 0;
  const Program eval =
      further ? train : Lower(ForwardOf(options, HeadMode::kEvalLoss), {.loss_chunk_rows = 5});
  Inputs inputs = MakeInputs(model->spec(), 7);
  const Outcome outcome = RunProgram(train, inputs);
  REQUIRE(outcome.loss == RunProgram(eval, inputs).loss);

  std::mt19937_64 random(11);
  std::normal_distribution<double> normal;
  size_t index = 0;
  for (const UnitSpec& unit : model->spec().units)
    for (const ParamSpec& param : unit.params) {
      const std::vector<float> values = inputs.params[index], gradient = outcome.gradients[index];
      CAPTURE(param.name);
      REQUIRE(gradient.size() == values.size());
      for (size_t i = static_cast<size_t>(param.numel()); i < gradient.size(); ++i)
        REQUIRE(gradient[i] == 0);  // padding
      for (int trial = 0; trial < 2; ++trial) {
        std::vector<double> direction(static_cast<size_t>(param.numel()));
        double length = 0, slope = 0, steepest = 0;
        for (double& d : direction) {
          d = normal(random);
          length += d * d;
        }
        for (size_t i = 0; i < direction.size(); ++i) {
          direction[i] /= std::sqrt(length);
          slope += direction[i] * gradient[i];
          steepest += static_cast<double>(gradient[i]) * gradient[i];
        }
        const auto quotient = [&](double h) {
          double loss[2];
          for (const int side : {0, 1}) {
            for (size_t i = 0; i < direction.size(); ++i)
              inputs.params[index][i] =
                  static_cast<float>(values[i] + (side == 1 ? h : -h) * direction[i]);
            loss[side] = RunProgram(eval, inputs).loss;
          }
          inputs.params[index] = values;
          return (loss[1] - loss[0]) / (2 * h);
        };
        const double h = 0.02, derivative = (4 * quotient(h / 2) - quotient(h)) / 3;
        CAPTURE(trial, slope, derivative, std::sqrt(steepest));
        CHECK(std::abs(slope - derivative) <= 3e-4 + 1e-3 * std::sqrt(steepest));
      }
      ++index;
    }
}

TEST_CASE("every recomputation policy gives the same bits", "[plan][gradients][numeric]") {
  ModelOptions options =
      NumericOptions(GENERATE(from_range(kNumeric)), GENERATE(true, false), GENERATE(true, false));
  options.blocks_per_unit = GENERATE(1, 2);
  const DType compute = GENERATE(DType::kF32, DType::kBF16);
  const bool fused = GENERATE(true, false);
  const Inputs inputs = MakeInputs(MakeModel(options)->spec(), 3);
  std::vector<Outcome> outcomes;
  for (const Recompute policy : kPolicies) {
    const SemanticGraph graph =
        AddGradients(ForwardOf(options, HeadMode::kTrainLoss, compute, DType::kF32), policy);
    outcomes.push_back(
        RunProgram(Lower(graph, {.fuse_residual_norm = fused, .fuse_bias_gelu = fused}), inputs));
  }
  CAPTURE(options.family, options.tied, Name(compute), fused);
  REQUIRE(std::isfinite(outcomes[0].loss));
  CHECK(outcomes[1] == outcomes[0]);
  CHECK(outcomes[2] == outcomes[0]);
}

// In f32 a fused op rounds where the separate ones do. In bf16 the fused norm gradient skips one
// rounding of d_x; a relative error of 2^-8 per value, so a part of that per tensor.
TEST_CASE("fused and separate ops agree", "[plan][gradients][numeric]") {
  const ModelOptions options =
      NumericOptions(GENERATE(ModelFamily::kGpt2, ModelFamily::kLlama), true);
  const DType compute = GENERATE(DType::kF32, DType::kBF16);
  const Inputs inputs = MakeInputs(MakeModel(options)->spec(), 5);
  const SemanticGraph graph = AddGradients(
      ForwardOf(options, HeadMode::kTrainLoss, compute, DType::kF32), Recompute::kNone);
  const Outcome fused = RunProgram(Lower(graph, {}), inputs);
  const Outcome separate =
      RunProgram(Lower(graph, {.fuse_residual_norm = false, .fuse_bias_gelu = false}), inputs);
  CHECK(fused.loss == separate.loss);  // nothing in the forward rounds differently
  double largest = 0;
  for (size_t i = 0; i < fused.gradients.size(); ++i) {
    double difference = 0, size = 0;
    for (size_t j = 0; j < fused.gradients[i].size(); ++j) {
      const double a = fused.gradients[i][j], b = separate.gradients[i][j];
      difference += (a - b) * (a - b);
      size += b * b;
    }
    CAPTURE(i, difference, size);
    REQUIRE(size > 0);
    CHECK(std::sqrt(difference / size) <= (compute == DType::kF32 ? 1e-6 : 1.0 / 64));
    largest = std::max(largest, difference);
  }
  if (compute == DType::kBF16) CHECK(largest > 0);  // the bound above is about something
}

TEST_CASE("how many rows of logits exist at once moves the gradients by rounding only",
          "[plan][gradients][numeric]") {
  const ModelOptions options = NumericOptions(GENERATE(from_range(kNumeric)), false);
  const Inputs inputs = MakeInputs(MakeModel(options)->spec(), 9);
  const SemanticGraph graph = AddGradients(ForwardOf(options), Recompute::kNone);
  const Outcome whole = RunProgram(Lower(graph, {.loss_chunk_rows = 1000}), inputs);
  const Outcome chunked = RunProgram(Lower(graph, {.loss_chunk_rows = 3}), inputs);
  CHECK(chunked.loss == Approx(whole.loss).epsilon(1e-6));
  for (size_t i = 0; i < whole.gradients.size(); ++i)
    for (size_t j = 0; j < whole.gradients[i].size(); ++j)
      REQUIRE(chunked.gradients[i][j] == Approx(whole.gradients[i][j]).epsilon(1e-4).margin(1e-6));
}

TEST_CASE("the logits of each row, one at a time, give the loss of the whole",
          "[plan][lower][numeric]") {
  const ModelOptions options =
      NumericOptions(GENERATE(from_range(kNumeric)), GENERATE(true, false));
  const ModelSpec spec = MakeModel(options)->spec();
  Inputs inputs = MakeInputs(spec, 13);
  inputs.tokens.resize(static_cast<size_t>(spec.seq_len + 1));
  const auto run = [&](HeadMode mode, int64_t row, auto&& result) {
    const Program program =
        Lower(ForwardOf(options, mode, DType::kF32, DType::kF32, 1), {.loss_chunk_rows = 2});
    ProgramInterpreter interpreter(program, CpuKernels());
    interpreter.scalars().inv_valid_tokens = 1;
    interpreter.scalars().generate_row = row;
    interpreter.SetTokens(inputs.tokens);
    for (size_t i = 0; i < inputs.params.size(); ++i)
      interpreter.SetParam(ParamId{static_cast<int32_t>(i)}, inputs.params[i]);
    interpreter.Run();
    return result(interpreter);
  };
  double sum = 0;
  for (int64_t row = 0; row < spec.seq_len; ++row) {
    const std::vector<float> logits =
        run(HeadMode::kLogits, row, [](const ProgramInterpreter& i) { return i.logits(); });
    REQUIRE(logits.size() == static_cast<size_t>(spec.padded_vocab));
    double total = 0;
    for (int64_t v = 0; v < spec.vocab; ++v)
      total += std::exp(static_cast<double>(logits[static_cast<size_t>(v)]));
    sum +=
        std::log(total) - logits[static_cast<size_t>(inputs.tokens[static_cast<size_t>(row + 1)])];
  }
  CHECK(run(HeadMode::kEvalLoss, 0, [](const ProgramInterpreter& i) { return i.loss(); }) ==
        Approx(sum).epsilon(1e-6));
}

}  // namespace
}  // namespace millrace
