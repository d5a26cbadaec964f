// Adding a family with a node of its own takes a file for each (low_rank_family.h, low_rank_node.h)
// and nothing of the runtime. It is planned, proved and trained like the built-in ones.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "runtime/exec/logical_tensors.h"
#include "runtime/plan/graph/model_flops.h"
#include "tests/support/model_run.h"
#include "tests/system/own/low_rank_family.h"

namespace millrace::test {
namespace {

constexpr int64_t kVocab = 23, kWidth = 6;
const std::vector<int64_t> kRanks = {2, 5, 1};

using Tensors = std::map<std::string, std::vector<float>>;

LowRankFamily Family() { return {kVocab, kWidth, kRanks}; }

ModelRun RunOf(Mesh mesh, int accumulate) {
  ModelRun run;
  run.mesh = mesh;
  run.options.accumulate = accumulate;
  run.options.learning_rate.lr = 0.02;
  return run;
}

// Microbatches [first, first + n) of a step: ranks take them in turn.
std::vector<int32_t> Windows(int64_t first, int64_t n) {
  std::vector<int32_t> tokens;
  for (int64_t m = first; m < first + n; ++m)
    for (int64_t i = 0; i < 16; ++i)
      tokens.push_back(static_cast<int32_t>((3 * i + i * i % 5 + 11 * m) % kVocab));
  return tokens;
}

Tensors Weights(Engine& engine) {
  Tensors weights;
  ForEachLogicalTensor(engine, "master",
                       [&](const ParamPlacement& param, std::span<const float> values) {
                         weights[param.spec.name].assign(values.begin(), values.end());
                       });
  return weights;
}

void SetWeights(Engine& engine, const Tensors& weights) {
  WriteLogicalTensors(engine, "master",
                      [&](const ParamPlacement& param) { return weights.at(param.spec.name); });
}

struct Result {
  std::vector<double> losses;
  Tensors gradients, weights;  // of the first step; after the last
  bool operator==(const Result&) const = default;
};

Result Train(const ModelRun& run, int64_t steps) {
  Result result;
  RunModel(Family(), run, [&](Engine& engine, int rank) {
    Result own;
    const int64_t n = run.options.accumulate;
    for (int64_t step = 0; step < steps; ++step) {
      own.losses.push_back(engine.Step(Windows(rank * n, n), step, 14 * n * run.mesh.world()).loss);
      if (step == 0) own.gradients = FirstGradients(engine, run.options);
    }
    own.weights = Weights(engine);
    if (rank == 0) result = std::move(own);
  });
  return result;
}

// Along a random direction of each parameter, against the central difference of the evaluated
// loss, extrapolated from two steps h and h/2. In f32 the loss is known to about 1e-6.
TEST_CASE("the gradient of a family of one's own is the derivative of its loss",
          "[system][family]") {
  RunModel(Family(), RunOf(Mesh(1, 1), 1), [&](Engine& engine, int) {
    const Tensors weights = Weights(engine);
    const std::vector<int32_t> tokens = Windows(0, 1);
    const double loss = engine.Step(tokens, 0, 14).loss;
    const Tensors gradients = FirstGradients(engine, RunOf(Mesh(1, 1), 1).options);
    SetWeights(engine, weights);
    REQUIRE(engine.EvalLossSum(tokens) / 14 == loss);
    std::mt19937_64 random(11);
    std::normal_distribution<double> normal;
    for (const auto& [name, gradient] : gradients) {
      std::vector<double> direction(gradient.size());
      double length = 0, slope = 0, steepest = 0;
      for (double& d : direction) d = normal(random), length += d * d;
      for (size_t i = 0; i < direction.size(); ++i) {
        direction[i] /= std::sqrt(length);
        slope += direction[i] * gradient[i];
        steepest += static_cast<double>(gradient[i]) * gradient[i];
      }
      const auto quotient = [&](double h) {
        double ends[2];
        for (const int side : {0, 1}) {
          Tensors moved = weights;
          for (size_t i = 0; i < direction.size(); ++i)
            moved[name][i] += static_cast<float>((side == 1 ? h : -h) * direction[i]);
          SetWeights(engine, moved);
          ends[side] = engine.EvalLossSum(tokens) / 14;
        }
        return (ends[1] - ends[0]) / (2 * h);
      };
      const double h = 0.02, derivative = (4 * quotient(h / 2) - quotient(h)) / 3;
      INFO(name << ": " << slope << " and " << derivative << " of " << std::sqrt(steepest));
      CHECK(steepest > 0);
      CHECK(std::abs(slope - derivative) <= 3e-4 + 1e-3 * std::sqrt(steepest));
    }
  });
}

TEST_CASE("a family of one's own trains on one rank and on two", "[system][family]") {
  const Result one = Train(RunOf(Mesh(1, 1), 2), 60);
  CHECK(one.losses.back() < one.losses.front() / 3);
  for (const Mesh& mesh : {Mesh(1, 2), Mesh(2, 1)}) {
    const Result two = Train(RunOf(mesh, 1), 60);
    CHECK(two.losses[0] == Approx(one.losses[0]).epsilon(1e-12));
    CHECK(two.losses.back() < two.losses.front() / 3);
    for (const auto& [name, want] : one.gradients) {
      const std::vector<float>& got = two.gradients.at(name);
      double scale = 0, apart = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        scale = std::max(scale, std::abs(static_cast<double>(want[i])));
        apart = std::max(apart, std::abs(static_cast<double>(got[i]) - want[i]));
      }
      INFO(name << ": " << apart << " of " << scale);
      CHECK(apart <= 16 * std::ldexp(1, -24) * scale);  // two sums in another order
    }
  }
}

TEST_CASE("a family of one's own has the same bits whatever is recomputed, and checked",
          "[system][family]") {
  const Result plain = Train(RunOf(Mesh(1, 2), 2), 3);
  for (const Recompute recompute : {Recompute::kNorms, Recompute::kBlock}) {
    ModelRun run = RunOf(Mesh(1, 2), 2);
    run.recompute = recompute;
    run.engine.checked = recompute == Recompute::kBlock;
    INFO("recompute " << Name(recompute));
    CHECK(Train(run, 3) == plain);
  }
}

TEST_CASE("the FLOPs of a family of one's own are those of its nodes", "[system][family]") {
  const LowRankFamily family = Family();
  ForwardBuilder b(family.spec(), {.batch = 2, .seq = 7}, DType::kF32, DType::kF32);
  family.EmitForward(b, HeadMode::kTrainLoss);
  double matrices = kVocab * kWidth;
  for (const int64_t rank : kRanks) matrices += static_cast<double>(rank * (3 + 2) * kWidth);
  const FlopsPerToken flops = TrainFlopsPerToken(std::move(b).Finish());
  CHECK(flops == FlopsPerToken{6 * matrices, 6 * matrices});
}

}  // namespace
}  // namespace millrace::test
