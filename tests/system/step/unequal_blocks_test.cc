// Models whose blocks differ in size, kind and order train like others: on any number of ranks,
// with any pool, and with the same bits whatever is recomputed or gathered again.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/support/model_run.h"
#include "tests/support/tiny_models.h"

namespace millrace::test {
namespace {

// Windows of microbatch `index` of a step.
std::vector<int32_t> Windows(int64_t index) {
  std::vector<int32_t> windows(2 * 8);
  for (size_t i = 0; i < windows.size(); ++i)
    windows[i] = static_cast<int32_t>((static_cast<int64_t>(3 * i + i * i % 5) + 11 * index) % 37);
  return windows;
}

struct Result {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> gradients;  // of the first step
  bool operator==(const Result&) const = default;
};

// Of world * accumulate microbatches a step, which ranks take in turn.
Result Train(const ModelOptions& options, const ModelRun& run, int64_t steps) {
  Result result;
  RunModel(*MakeModel(options), run, [&](Engine& engine, int rank) {
    Result own;
    const int64_t n = run.options.accumulate, all = n * run.mesh.world();
    for (int64_t step = 0; step < steps; ++step) {
      std::vector<int32_t> tokens;
      for (int64_t m = 0; m < n; ++m)
        for (const int32_t token : Windows(rank * n + m)) tokens.push_back(token);
      const StepScalars scalars = engine.Step(tokens, step, 14 * all);
      own.losses.push_back(scalars.loss);
      own.norms.push_back(scalars.grad_norm);
      if (step == 0) own.gradients = FirstGradients(engine, run.options);
    }
    if (rank == run.mesh.world() - 1) result = std::move(own);
  });
  return result;
}

ModelRun RunOf(Mesh mesh, int accumulate) {
  ModelRun run;
  run.mesh = mesh;
  run.options.accumulate = accumulate;
  run.options.learning_rate.lr = 0.02;
  return run;
}

ModelOptions Options(bool gpt2) {
  ModelOptions options = Unequal(gpt2 ? TinyGpt2() : TinyLlama());
  options.init_std = 0.3;
  return options;
}

TEST_CASE("a model of unequal blocks has the same gradient on one rank and on several, and learns",
          "[system][blocks]") {
  const ModelOptions options = Options(GENERATE(true, false));
  const Result one = Train(options, RunOf(Mesh(1, 1), 4), 40);
  CHECK(one.losses.back() < one.losses.front() / 3);
  for (const auto& [mesh, accumulate] :
       {std::pair{Mesh(1, 2), 2}, {Mesh(1, 4), 1}, {Mesh(2, 2), 1}, {Mesh(2, 1), 2}}) {
    const Result many = Train(options, RunOf(mesh, accumulate), 1);
    CHECK(many.losses[0] == Approx(one.losses[0]).epsilon(1e-12));
    REQUIRE(many.gradients.size() == one.gradients.size());
    for (const auto& [name, want] : one.gradients) {
      const std::vector<float>& got = many.gradients.at(name);
      double scale = 0, apart = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        scale = std::max(scale, std::abs(static_cast<double>(want[i])));
        apart = std::max(apart, std::abs(static_cast<double>(got[i]) - want[i]));
      }
      INFO(name << ": " << apart << " of " << scale);
      CHECK(scale > 0);
      CHECK(apart <= 16 * std::ldexp(1, -24) * scale);  // four sums in another order
    }
  }
}

TEST_CASE("unequal blocks: the same bits in every pool, recomputed or not, gathered again or not",
          "[system][blocks]") {
  const ModelOptions options = Options(GENERATE(true, false));
  const Result plain = Train(options, RunOf(Mesh(1, 2), 2), 3);
  for (const AllocatorKind allocator :
       {AllocatorKind::kPacked, AllocatorKind::kColoured, AllocatorKind::kMaxPool,
        AllocatorKind::kFixed, AllocatorKind::kPersistent, AllocatorKind::kDynamic})
    for (const Recompute recompute : {Recompute::kNone, Recompute::kNorms, Recompute::kBlock}) {
      ModelRun run = RunOf(Mesh(1, 2), 2);
      run.options.allocator = allocator;
      run.recompute = recompute;
      run.options.reshard =
          recompute == Recompute::kNorms ? Reshard::kNever : Reshard::kAfterForward;
      INFO("allocator " << Name(allocator) << " recompute " << Name(recompute));
      CHECK(Train(options, run, 3) == plain);
    }
}

}  // namespace
}  // namespace millrace::test
