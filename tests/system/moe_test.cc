// Mixtures of experts in models that train: proofs, recomputation, accumulation and ranks, on the
// CPU's kernels. Against PyTorch they are compared in tests/golden.
#include <catch2/catch.hpp>
#include <cmath>
#include <span>

#include "tests/support/model_run.h"
#include "tests/support/tiny_models.h"

namespace millrace::test {
namespace {

// Two blocks: attention and experts, experts alone; sizes that divide nothing.
ModelOptions TinyMoe(const MoeShape& moe) {
  ModelOptions o = TinyLlama();
  o.blocks = {BlockShape{{AttentionShape{.heads = 4, .kv_heads = 2, .head_dim = 4}, moe}},
              BlockShape{{moe}}};
  o.init_std = 0.3;  // the choices differ from row to row
  return o;
}

MoeShape Softmax() { return {.experts = 5, .top_k = 2, .width = 7}; }
MoeShape Sigmoid() {
  return {.experts = 6,
          .top_k = 3,
          .width = 9,
          .activation = ActivationKind::kRelu2,
          .router = RouterKind::kSigmoid,
          .groups = 3,
          .top_groups = 2,
          .scaling = 2.5};
}

// Of sample `row` of the whole step.
std::vector<int32_t> TokensOf(int64_t row, int64_t vocab) {
  std::vector<int32_t> tokens(8);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>((7 * static_cast<int64_t>(i * i) + 11 * row + 3) % vocab);
  return tokens;
}

struct Result {
  double loss = 0, norm = 0;
  std::map<std::string, std::vector<float>> gradients;
  bool operator==(const Result&) const = default;
};

// One step on 2 * accumulate * world samples; gradients of the last rank.
Result StepOf(const ModelOptions& options, const ModelRun& run) {
  Result result;
  const int n = static_cast<int>(run.options.accumulate), world = run.mesh.world();
  RunModel(*MakeModel(options), run, [&](Engine& engine, int rank) {
    std::vector<int32_t> tokens;
    for (int m = 0; m < n; ++m)
      for (int b = 0; b < 2; ++b)
        for (const int32_t id : TokensOf((m * world + rank) * 2 + b, options.vocab))
          tokens.push_back(id);
    const StepScalars scalars =
        engine.Step(HostInputs{{"tokens", std::as_bytes(std::span(tokens))}}, 0, 14 * n * world);
    auto gradients = FirstGradients(engine, run.options);
    if (rank == world - 1) result = {scalars.loss, scalars.grad_norm, std::move(gradients)};
  });
  return result;
}

ModelRun RunOf(const Mesh& mesh, int accumulate) {
  ModelRun run;
  run.mesh = mesh;
  run.options.accumulate = accumulate;
  run.options.learning_rate.lr = 1e-3;
  return run;
}

TEST_CASE("experts train, and every recomputation has the same bits", "[system][moe]") {
  for (const MoeShape& moe : {Softmax(), Sigmoid()}) {
    ModelRun run = RunOf(Mesh(1, 2), 2);
    const Result saved = StepOf(TinyMoe(moe), run);
    CHECK(std::isfinite(saved.loss));
    for (const std::string name : {"router.weight", "experts.down.weight"}) {
      double largest = 0;
      for (const float g : saved.gradients.at("h.1.moe." + name))
        largest = std::max(largest, std::abs(static_cast<double>(g)));
      INFO(name);
      CHECK(largest > 1e-4);
    }
    for (const Recompute recompute : {Recompute::kNorms, Recompute::kBlock}) {
      run.recompute = recompute;
      INFO(Name(recompute));
      CHECK(StepOf(TinyMoe(moe), run) == saved);
    }
  }
}

// Of the same samples. Sums over rows in another order: each element is off by at most some units
// of the largest of its tensor.
void CheckNearly(const Result& got, const Result& want) {
  CHECK(got.loss == Approx(want.loss).epsilon(1e-6));
  for (const auto& [name, gradient] : want.gradients) {
    double scale = 0, apart = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      scale = std::max(scale, std::abs(static_cast<double>(gradient[i])));
      apart = std::max(apart, std::abs(static_cast<double>(gradient[i]) -
                                       static_cast<double>(got.gradients.at(name)[i])));
    }
    INFO(name << ": " << apart << " of " << scale);
    CHECK(scale > 0);
    CHECK(apart <= 64 * std::ldexp(scale, -24));
  }
}

TEST_CASE("a batch has one gradient, however it lies on microbatches and ranks", "[system][moe]") {
  for (const MoeShape& moe : {Softmax(), Sigmoid()}) {
    const Result whole = StepOf(TinyMoe(moe), RunOf(Mesh(1, 1), 4));
    CheckNearly(StepOf(TinyMoe(moe), RunOf(Mesh(1, 2), 2)), whole);
    CheckNearly(StepOf(TinyMoe(moe), RunOf(Mesh(1, 4), 1)), whole);
    CheckNearly(StepOf(TinyMoe(moe), RunOf(Mesh(2, 2), 1)), whole);
  }
}

}  // namespace
}  // namespace millrace::test
