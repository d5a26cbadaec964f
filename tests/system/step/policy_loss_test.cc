// What a step is told of its targets beside what they are: weights, and what a policy gradient
// needs. Against PyTorch (tests/golden/make_policy.py), and against each other.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>

#include "runtime/exec/logical_tensors.h"
#include "runtime/plan/layout/further_weights.h"
#include "tests/support/model_run.h"
#include "tests/support/tiny_models.h"

namespace millrace::test {
namespace {

using nlohmann::json;

constexpr int64_t kSequences = 4, kSeq = 7, kTargets = kSequences * kSeq;

// Of all sequences of a step, [kSequences, T] each.
struct StepInputs {
  std::vector<float> weights, old_logprobs, advantages, reference_logprobs;
  double total = 0;                     // of the weights
  std::vector<FurtherWeights> further;  // of them, of blocks that predict further
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
      for (const FurtherWeights& further : in.further)
        add(further.source.c_str(), true, further.values);
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

json Golden(const std::string& folder = "policy_tiny") {
  std::ifstream in("tests/golden/" + folder + "/golden.json");
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

// Counts of targets and sums of weights of all depths, over a step of `sequences`.
LossTotals TotalsOf(double weights, const std::vector<FurtherWeights>& further, int64_t sequences,
                    int64_t seq_len, double times = 1) {
  LossTotals totals(sequences * seq_len, weights);
  for (const FurtherWeights& of : further)
    totals.others.push_back(
        {of.source, sequences * (seq_len - 1 - std::ssize(totals.others)), times * of.sum});
  return totals;
}

TEST_CASE(
    "blocks that predict further have losses that are means by the weights of their own "
    "targets",
    "[system][losses]") {
  const json golden = Golden("mtp_weighted_tiny");
  ModelOptions options = OptionsOf({.weights = true});
  options.mtp = {.depth = 3, .loss_scale = golden["loss_scale"], .block = options.blocks.front()};
  StepInputs in = InputsOfScript();
  in.further = RolledWeights(in.weights, kSeq, 3);
  const LossTotals totals = TotalsOf(in.total, in.further, kSequences, kSeq);
  // Divided by length, no depth's loss would be: the mean weight of a depth's targets differs.
  for (const LossTotals::OfSource& of : totals.others)
    CHECK(std::abs(of.weights / static_cast<double>(of.targets) - in.total / kTargets) > 1e-3);
  json whole = golden;
  whole["loss"] = golden["loss"].get<double>() +
                  golden["loss_scale"].get<double>() * golden["mtp"].get<double>();
  for (const Mesh& mesh : {Mesh(1, 1), Mesh(1, 2), Mesh(2, 1)})
    CheckGolden(StepOf(options, RunOf(mesh), in, totals), whole);
}

TEST_CASE("depths whose targets all weigh nothing have no loss and no gradient",
          "[system][losses]") {
  ModelOptions options = OptionsOf({.weights = true});
  options.mtp = {.depth = 2, .loss_scale = 0.3, .block = options.blocks.front()};
  StepInputs in;
  in.weights = ByPlace([](int64_t, int64_t t) { return t == 1 ? 2 : 0; });
  in.total = 2 * kSequences;
  in.further = RolledWeights(in.weights, kSeq, 2);
  LossTotals totals = TotalsOf(in.total, in.further, kSequences, kSeq);
  CHECK(totals.others[0].weights == in.total);
  CHECK(totals.others[1].weights == 0);
  const Result found = StepOf(options, RunOf(Mesh(1, 1)), in, totals);
  CHECK(std::isfinite(found.loss));
  const auto largest = [&](const std::string& name) {
    double most = 0;
    for (const float g : found.gradients.at(name)) most = std::max(most, std::abs(double{g}));
    return most;
  };
  CHECK(largest("mtp.1.h_proj.weight") > 1e-4);
  CHECK(largest("mtp.2.h_proj.weight") == 0);

  totals.others.pop_back();
  CHECK_THROWS_WITH(
      StepOf(options, RunOf(Mesh(1, 1)), in, totals),
      Catch::Matchers::Contains("the sum of the weights 'mtp.2.weights' is not given"));
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

// Of one step of 2 microbatches, on each rank. weight_of: of a target, by its place in its
// sequence; empty: none.
std::vector<Result> StepOfMany(const Mesh& mesh,
                               const std::function<float(int64_t t)>& weight_of = {}) {
  const bool weights = weight_of != nullptr;
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
    std::vector<float> given;
    for (int64_t i = 0; weights && i < 4 * options.seq_len; ++i)
      given.push_back(weight_of(i % options.seq_len));
    const std::vector<FurtherWeights> further =
        RolledWeights(given, options.seq_len, weights ? 2 : 0);
    std::vector<HostInputs::Input> inputs = {{"tokens", std::as_bytes(std::span(tokens))}};
    if (weights) inputs.push_back({"weights", std::as_bytes(std::span(given))});
    for (const FurtherWeights& of : further)
      inputs.push_back({of.source, std::as_bytes(std::span(of.values))});
    const auto data_ranks = static_cast<double>(mesh.data_ranks());
    const int64_t sequences = 4 * mesh.data_ranks();
    const double sum = weights ? std::accumulate(given.begin(), given.end(), 0.0) * data_ranks
                               : static_cast<double>(sequences * options.seq_len);
    const LossTotals totals = TotalsOf(sum, further, sequences, options.seq_len, data_ranks);
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
    const std::vector<Result> without = StepOfMany(mesh);
    // A half is scaled to 1 on its way.
    for (const float weight : {1.0f, 0.5f}) {
      const std::vector<Result> with = StepOfMany(mesh, [&](int64_t) { return weight; });
      for (size_t r = 0; r < with.size(); ++r) {
        CHECK(with[r].loss == without[r].loss);
        CHECK(with[r].norm == without[r].norm);
        CHECK(with[r].gradients == without[r].gradients);
      }
    }
  }
}

// Positions, the first of which no depth's targets have, weigh otherwise each.
TEST_CASE("weights that differ have the same losses and gradients on ranks that share sequences",
          "[system][losses]") {
  const auto weight_of = [](int64_t t) {
    return t == 0 ? 4.0f : 0.25f * static_cast<float>(t % 3);
  };
  const Result whole = StepOfMany(Mesh(1, 1), weight_of).front();
  for (const Axis axis : {Axis::kContext, Axis::kTensor}) {
    const Mesh mesh = Mesh().With(axis, 2);
    INFO(ToString(mesh));
    const Result found = StepOfMany(mesh, weight_of).front();
    CHECK(found.loss == Approx(whole.loss).epsilon(1e-6));
    CHECK(found.norm == Approx(whole.norm).epsilon(1e-5));
    for (const char* name : {"mtp.1.h_proj.weight", "mtp.2.h_proj.weight", "lm_head.weight"}) {
      const std::vector<float>&a = found.gradients.at(name), &b = whole.gradients.at(name);
      double apart = 0, largest = 0;
      for (size_t i = 0; i < b.size(); ++i) {
        apart = std::max(apart, std::abs(double{a[i]} - double{b[i]}));
        largest = std::max(largest, std::abs(double{b[i]}));
      }
      CAPTURE(name, apart, largest);
      CHECK(apart <= 1e-5 * largest);
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
