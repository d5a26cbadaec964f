// What a step is told of its targets beside what they are: weights, and what a policy gradient
// needs. Against PyTorch (tests/golden/make_policy.py), and against each other.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/exec/logical_tensors.h"
#include "tests/support/model_run.h"
#include "tests/support/tiny_models.h"

namespace millrace::test {
namespace {

using nlohmann::json;

constexpr int64_t kSequences = 4, kSeq = 7, kTargets = kSequences * kSeq;

// Of all sequences of a step, [kSequences, T] each.
struct StepInputs {
  std::vector<float> weights, old_logprobs, advantages, reference_logprobs;
  double total = 0;  // of the weights
};

template <class F>
std::vector<float> ByPlace(F f) {
  std::vector<float> values;
  for (int64_t b = 0; b < kSequences; ++b)
    for (int64_t t = 0; t < kSeq; ++t) values.push_back(static_cast<float>(f(b, t)));
  return values;
}

// The script's formulas, exact in f32.
StepInputs InputsOfScript() {
  StepInputs in;
  in.weights =
      ByPlace([](int64_t b, int64_t t) { return 0.5 * double((3 * b + 2 * t + b * t) % 4); });
  in.advantages =
      ByPlace([](int64_t b, int64_t t) { return double(8 * (b % 2) - 4 + (b + t) % 3) / 8; });
  for (const float weight : in.weights) in.total += static_cast<double>(weight);
  return in;
}

std::vector<float> ParamValues(const ModelSpec& spec, const std::string& name) {
  int p = 0;
  for (const UnitSpec& unit : spec.units)
    for (const ParamSpec& param : unit.params) {
      if (param.name != name) {
        ++p;
        continue;
      }
      std::vector<float> values;
      for (int64_t i = 0; i < param.numel(); ++i) {
        const auto at = static_cast<double>(i);
        values.push_back(
            static_cast<float>((param.kind == ParamKind::kNorm ? 1 : 0) +
                               0.4 * std::sin(1.3 * p + 0.71 * at + 0.0137 * at * at)));
      }
      return values;
    }
  FAIL("no parameter " << name);
  return {};
}

// Sequences [first, first + count) of [kSequences, columns].
template <class T>
std::span<const std::byte> Of(const std::vector<T>& values, int64_t first, int64_t count) {
  const size_t columns = values.size() / kSequences;
  return std::as_bytes(std::span(values).subspan(static_cast<size_t>(first) * columns,
                                                 static_cast<size_t>(count) * columns));
}

std::vector<int32_t> Windows(int64_t vocab) {
  std::vector<int32_t> tokens;
  for (int64_t b = 0; b < kSequences; ++b)
    for (int64_t i = 0; i <= kSeq; ++i)
      tokens.push_back(static_cast<int32_t>((7 * i + i * i % 11 + 5 * b) % vocab));
  return tokens;
}

struct Result {
  double loss = 0, norm = 0, evaluated = 0;
  std::vector<float> tallies;
  std::map<std::string, std::vector<float>> gradients;
};

ModelOptions OptionsOf(const LossOptions& loss) {
  ModelOptions options = TinyQwen3(2);
  options.loss = loss;
  return options;
}

// 4 sequences a step: 2 in each microbatch, of one rank or of two.
ModelRun RunOf(const Mesh& mesh) {
  ModelRun run;
  run.mesh = mesh;
  run.options.accumulate = static_cast<int>(2 / mesh.data_ranks());
  run.options.learning_rate.lr = 1e-3;
  return run;
}

// `given`: false: tokens alone.
Result StepOf(const ModelOptions& options, const ModelRun& run, const StepInputs& in,
              const LossTotals& totals) {
  Result result;
  const std::unique_ptr<Model> model = MakeModel(options);
  RunModel(*model, run, [&](Engine& engine, int rank) {
    WriteLogicalTensors(engine, "master", [&](const ParamPlacement& param) {
      return ParamValues(model->spec(), param.spec.name);
    });
    const std::vector<int32_t> tokens = Windows(options.vocab);
    const int64_t count = 2 * run.options.accumulate,
                  first = count * run.mesh.Index(rank, kDataAxes);
    const auto of = [&](int64_t sequences, auto&& use) {
      std::vector<HostInputs::Input> inputs = {{"tokens", Of(tokens, first, sequences)}};
      const auto add = [&](const char* name, bool needed, const std::vector<float>& values) {
        if (needed) inputs.push_back({name, Of(values, first, sequences)});
      };
      add("weights", options.loss.weights, in.weights);
      add("old_logprobs", options.loss.policy.has_value(), in.old_logprobs);
      add("advantages", options.loss.policy.has_value(), in.advantages);
      add("reference_logprobs", options.loss.policy && options.loss.policy->kl != 0,
          in.reference_logprobs);
      return use(HostInputs(inputs));
    };
    const double evaluated = of(2, [&](const HostInputs& i) { return engine.EvalLossSum(i); });
    const StepScalars scalars =
        of(count, [&](const HostInputs& i) { return engine.Step(i, 1, totals); });
    auto gradients = FirstGradients(engine, run.options);
    if (rank == 0)
      result = {scalars.loss,
                scalars.grad_norm,
                evaluated,
                {engine.tallies().begin(), engine.tallies().end()},
                std::move(gradients)};
  });
  return result;
}

json Golden() {
  std::ifstream in("tests/golden/policy_tiny/golden.json");
  REQUIRE(in.good());
  return json::parse(in);
}

// As tests/models/mtp_golden_test.cc: float64 against f32 of the same model.
void CheckGolden(const Result& found, const json& golden) {
  CHECK(std::abs(found.loss - golden["loss"].get<double>()) <= 1e-5);
  REQUIRE(found.gradients.size() == golden["grad"].size());
  for (const auto& [name, values] : found.gradients) {
    const auto reference = golden["grad"].at(name).get<std::vector<double>>();
    REQUIRE(reference.size() == values.size());
    double largest = 0, apart = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(reference[i]));
      apart = std::max(apart, std::abs(static_cast<double>(values[i]) - reference[i]));
    }
    CAPTURE(name, apart, largest);
    CHECK(largest > 1e-4);
    CHECK(apart <= 1e-5 * largest + 1e-7);
  }
}

TEST_CASE("a loss of weighted targets is their weighted mean, over all ranks and microbatches",
          "[system][losses]") {
  const StepInputs in = InputsOfScript();
  for (const Mesh& mesh : {Mesh(1, 1), Mesh(1, 2), Mesh(2, 1)})
    CheckGolden(StepOf(OptionsOf({.weights = true}), RunOf(mesh), in, {kTargets, in.total}),
                Golden()["weighted"]);
}

PolicyLoss PolicyOf(const json& golden) {
  return {golden["clip_low"], golden["clip_high"], golden["beta"]};
}

TEST_CASE("a clipped policy gradient has PyTorch's loss, gradients and tally", "[system][losses]") {
  const json golden = Golden()["policy"];
  StepInputs in = InputsOfScript();
  in.old_logprobs = golden["old_logprobs"].get<std::vector<float>>();
  in.reference_logprobs = golden["reference_logprobs"].get<std::vector<float>>();
  for (const Mesh& mesh : {Mesh(1, 1), Mesh(1, 2)}) {
    const Result found = StepOf(OptionsOf({.weights = true, .policy = PolicyOf(golden)}),
                                RunOf(mesh), in, {kTargets, in.total});
    CheckGolden(found, golden);
    const auto tally = golden["tally"].get<std::vector<double>>();
    REQUIRE(found.tallies.size() == tally.size());
    for (size_t i = 0; i < tally.size(); ++i)
      CHECK(found.tallies[i] == Approx(tally[i]).epsilon(1e-5));
  }
}

// Of each target, by an evaluation in which it alone has a weight.
std::vector<float> OwnLogprobs(const ModelOptions& options) {
  ModelOptions weighted = options;
  weighted.loss = {.weights = true};
  const std::unique_ptr<Model> model = MakeModel(weighted);
  std::vector<float> logprobs;
  RunModel(*model, {}, [&](Engine& engine, int) {
    WriteLogicalTensors(engine, "master", [&](const ParamPlacement& param) {
      return ParamValues(model->spec(), param.spec.name);
    });
    const std::vector<int32_t> tokens = Windows(options.vocab);
    for (int64_t b = 0; b < kSequences; b += 2)
      for (size_t i = 0; i < 2 * kSeq; ++i) {
        std::vector<float> one(2 * kSeq);
        one[i] = 1;
        logprobs.push_back(-static_cast<float>(engine.EvalLossSum(
            {{"tokens", Of(tokens, b, 2)}, {"weights", std::as_bytes(std::span(one))}})));
      }
  });
  return logprobs;
}

TEST_CASE(
    "where the old log-probabilities are its own, a policy gradient is bit for bit the cross "
    "entropy weighted by the advantages",
    "[system][losses]") {
  StepInputs in = InputsOfScript();
  const ModelRun run = RunOf(Mesh(1, 2));
  const ModelOptions policy = OptionsOf({.weights = true, .policy = PolicyLoss{}});
  in.old_logprobs = OwnLogprobs(policy);
  const Result first = StepOf(policy, run, in, kTargets);
  StepInputs products = in;
  for (size_t i = 0; i < in.weights.size(); ++i) products.weights[i] *= in.advantages[i];
  const Result weighted = StepOf(OptionsOf({.weights = true}), run, products, kTargets);
  CHECK(first.gradients == weighted.gradients);
  CHECK(first.norm == weighted.norm);
  double sum = 0;
  for (const float product : products.weights) sum -= static_cast<double>(product);
  CHECK(first.loss == sum * (1.0 / kTargets));  // every ratio is exactly 1
  const auto counted = static_cast<float>(
      std::count_if(in.weights.begin(), in.weights.end(), [](float w) { return w != 0; }));
  CHECK(first.tallies == std::vector<float>{counted, 0, counted, 0});
  // One of them moved by a last place is another loss.
  const auto counts =
      std::find_if(in.weights.begin(), in.weights.end(), [](float w) { return w != 0; });
  float& moved = in.old_logprobs[static_cast<size_t>(counts - in.weights.begin())];
  moved = std::nextafter(moved, 0.0f);
  CHECK(StepOf(policy, run, in, kTargets).loss != first.loss);
}

// Of the next token, of two further ones, and of experts.
ModelOptions ManyLosses(bool weights) {
  ModelOptions options = Divisible(TinyLlama(2));
  options.blocks.back().branches.back() = MoeShape{.experts = 5,
                                                   .top_k = 2,
                                                   .width = 7,
                                                   .aux_loss = AuxLossKind::kSwitch,
                                                   .aux_coefficient = 0.5};
  options.mtp = {.depth = 2, .loss_scale = 0.3, .block = options.blocks.front()};
  options.loss.weights = weights;
  return options;
}

// Of one step of 2 microbatches, on each rank.
std::vector<Result> StepOfMany(const Mesh& mesh, bool weights, float weight,
                               const LossTotals& totals) {
  ModelOptions options = ManyLosses(weights);
  options.tensor = mesh.Size(Axis::kTensor);
  const std::unique_ptr<Model> model = MakeModel(options);
  ModelRun run;
  run.mesh = mesh;
  run.options.shape.seq = options.seq_len;
  run.options.accumulate = 2;
  run.options.learning_rate.lr = 1e-3;
  std::vector<Result> results(static_cast<size_t>(mesh.world()));
  RunModel(*model, run, [&](Engine& engine, int rank) {
    const int64_t n = 4 * (options.seq_len + 1);
    const int data_rank = mesh.Index(rank, kDataAxes);
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < n; ++i)
      tokens.push_back(static_cast<int32_t>((7 * i + 13 * data_rank + i * i % 11) % options.vocab));
    const std::vector<float> ones(static_cast<size_t>(4 * options.seq_len), weight);
    std::vector<HostInputs::Input> inputs = {{"tokens", std::as_bytes(std::span(tokens))}};
    if (weights) inputs.push_back({"weights", std::as_bytes(std::span(ones))});
    const StepScalars scalars = engine.Step(HostInputs(inputs), 0, totals);
    results[static_cast<size_t>(rank)] = {
        scalars.loss, scalars.grad_norm, 0, {}, FirstGradients(engine, run.options)};
  });
  return results;
}

TEST_CASE("weights that are all equal have the bits of none, whatever axes and losses there are",
          "[system][losses]") {
  for (const Mesh& mesh :
       {Mesh(1, 1), Mesh(2, 2), Mesh().With(Axis::kContext, 2), Mesh().With(Axis::kTensor, 2)}) {
    INFO(ToString(mesh));
    const int64_t targets = 2 * 2 * 8 * mesh.data_ranks();
    const std::vector<Result> without = StepOfMany(mesh, false, 0, targets);
    // A half is scaled to 1 on its way.
    for (const float weight : {1.0f, 0.5f}) {
      const std::vector<Result> with =
          StepOfMany(mesh, true, weight,
                     {targets, static_cast<double>(weight) * static_cast<double>(targets)});
      for (size_t r = 0; r < with.size(); ++r) {
        CHECK(with[r].loss == without[r].loss);
        CHECK(with[r].norm == without[r].norm);
        CHECK(with[r].gradients == without[r].gradients);
      }
    }
  }
}

TEST_CASE("a policy gradient is refused where blocks predict further", "[system][losses]") {
  ModelOptions options = ManyLosses(true);
  options.loss.policy = PolicyLoss{};
  CHECK_THROWS_WITH(MakeModel(options), Catch::Matchers::Contains(
                                            "train.loss is policy_gradient and model.mtp.depth 2"));
}

}  // namespace
}  // namespace millrace::test
