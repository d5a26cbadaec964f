// Moments in bf16: fewer bytes, the same bits however a run is cut into calls, and training that
// stays close to that with f32.
#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/exec/logical_tensors.h"
#include "runtime/run/checkpoint/run_checkpoint.h"
#include "runtime/run/checkpoint/run_saver.h"
#include "tests/runtime/data/temp_dir.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

using Format = PrecisionConfig::Format;

Trial With(Format moments, int world, int64_t accumulate = 1) {
  Trial trial =
      MakeBase(ModelConfig::Family::kLlama, false, Precision::kFp32, world, accumulate).trial;
  trial.config.optimizer.moments = moments;
  return trial;
}

RunIdentity IdentityOf(const Trial& trial) {
  return {ModelOptionsOf(trial.config), "tokens of samples", 0,
          trial.config.train.GlobalBatch(trial.config.parallel.DataRanks(trial.world)), "{}"};
}

TEST_CASE("moments in bf16 are half the optimizer's bytes", "[system][moments]") {
  const auto bytes = [](Format moments) {
    const AssembledRun run = PlanOf(With(moments, 2));
    int64_t sum = 0;
    for (const StateTensor& state : run.plans.states.tensors)
      if (state.cls == BufferClass::kOptimizer) sum += state.bytes();
    return sum;
  };
  CHECK(bytes(Format::kFp32) == 2 * bytes(Format::kBf16));
  const AssembledRun wide = PlanOf(With(Format::kFp32, 2)), narrow = PlanOf(With(Format::kBf16, 2));
  const auto optimizer = static_cast<size_t>(BufferClass::kOptimizer);
  CHECK(wide.plans.Of("train").peak_by_class[optimizer] >
        narrow.plans.Of("train").peak_by_class[optimizer]);
  CHECK(PlanHash(wide.plans.Of("train")) != PlanHash(narrow.plans.Of("train")));
}

// A moment is off by at most 2^-7 of itself per rounding, uniformly: std 2^-7 / sqrt(12) = 0.23%
// per step, and what b^k is left of earlier ones: over sqrt(1 - b^2), 0.52% of m at b 0.9 and 0.72%
// of v at 0.95, half of that of its root. So a step's direction, m / sqrt(v), has noise of 0.63%
// with a mean of zero; its elements are 1 at most (Adam's bound for slow gradients), so that the
// loss is off by lr * 0.63% * |g| per step, |g| the gradient's norm. Twenty steps add as squares;
// five standard deviations, and twice that for what the steps before did to the gradients.
TEST_CASE("training with moments in bf16 stays close", "[system][moments]") {
  Trial trial = With(Format::kFp32, 2);
  trial.steps = 20;
  trial.config.train.steps = 20;
  const Outcome wide = RunTrial(trial);
  trial.config.optimizer.moments = Format::kBf16;
  const Outcome narrow = RunTrial(trial);
  CHECK(narrow.param_hash != wide.param_hash);
  double variance = 0;
  for (size_t step = 0; step < wide.scalars.size(); ++step) {
    const double apart = std::abs(narrow.scalars[step].loss - wide.scalars[step].loss);
    INFO("step " << step << ": " << apart << " of " << 10 * std::sqrt(variance));
    CHECK(apart <= 10 * std::sqrt(variance) + 1e-12);
    variance += std::pow(wide.scalars[step].lr * 0.0063 * wide.scalars[step].grad_norm, 2);
  }
  CHECK(10 * std::sqrt(variance) < 0.01 * wide.scalars.back().loss);  // a bound that can fail
}

struct Loaded {
  std::string hashes;
  std::vector<std::string> changes;
};

Loaded LoadedBy(const Trial& trial, const std::string& folder) {
  Loaded loaded;
  RunEngines(trial, [&](RankContext& rank) {
    const auto resumed = ResumeRun(rank.engine, folder, ResumePolicy::kMust, IdentityOf(trial));
    const std::string hashes = ParamHash(rank.engine) + OptimizerHash(rank.engine);
    if (rank.rank == 0) loaded = {hashes, resumed->changes};
  });
  return loaded;
}

// Trained for two steps and saved; the hashes of what was saved.
std::string SavedBy(const Trial& trial, const std::string& folder) {
  std::string saved;
  RunEngines(trial, [&](RankContext& rank) {
    rank.engine.InitWeights(3);
    for (int64_t step = 0; step < 2; ++step) StepOn(rank, trial.config, step);
    SaveRun(rank.engine, folder, {2, 12}, IdentityOf(trial), 2);
    const std::string hashes = ParamHash(rank.engine) + OptimizerHash(rank.engine);
    if (rank.rank == 0) saved = hashes;
  });
  return saved;
}

bool Says(const Loaded& loaded, const std::string& text) {
  for (const std::string& change : loaded.changes)
    if (change.find(text) != change.npos) return true;
  return false;
}

TEST_CASE("checkpoints hold moments in their dtype, and any world loads them",
          "[system][moments]") {
  const TempDir dir;
  const std::string saved = SavedBy(With(Format::kBf16, 3), dir.path());
  for (const int world : {1, 2, 3}) {
    INFO("world " << world);
    const Loaded same = LoadedBy(With(Format::kBf16, world), dir.path());
    CHECK(same.hashes == saved);
    CHECK(!Says(same, "adam_m"));
    const Loaded wide = LoadedBy(With(Format::kFp32, world), dir.path());
    CHECK(wide.hashes == saved);  // the same values, wider
    CHECK(Says(wide, "has adam_m in bf16, this run keeps it in f32: the values are the same"));
  }
}

TEST_CASE("moments that were f32 are rounded, and a run says so", "[system][moments]") {
  const TempDir dir;
  const std::string saved = SavedBy(With(Format::kFp32, 2), dir.path());
  for (const int world : {1, 2}) {
    INFO("world " << world);
    const Loaded narrow = LoadedBy(With(Format::kBf16, world), dir.path());
    CHECK(narrow.hashes != saved);
    CHECK(Says(narrow, "has adam_v in f32, this run keeps it in bf16: rounded to nearest"));
  }
}

TEST_CASE("a run of bf16 moments that is resumed is the run that was not stopped",
          "[system][moments]") {
  for (const int world : {1, 2}) {
    const Trial trial = With(Format::kBf16, world, 2);
    const TempDir dir;
    std::string whole, resumed;
    RunEngines(trial, [&](RankContext& rank) {
      rank.engine.InitWeights(3);
      for (int64_t step = 0; step < 4; ++step) {
        if (step == 2) SaveRun(rank.engine, dir.path(), {2, 12}, IdentityOf(trial), 2);
        StepOn(rank, trial.config, step);
      }
      const std::string hashes = ParamHash(rank.engine) + OptimizerHash(rank.engine);
      if (rank.rank == 0) whole = hashes;
    });
    RunEngines(trial, [&](RankContext& rank) {
      ResumeRun(rank.engine, dir.path(), ResumePolicy::kMust, IdentityOf(trial));
      for (int64_t step = 2; step < 4; ++step) StepOn(rank, trial.config, step);
      const std::string hashes = ParamHash(rank.engine) + OptimizerHash(rank.engine);
      if (rank.rank == 0) resumed = hashes;
    });
    CHECK(resumed == whole);
  }
}

}  // namespace
}  // namespace millrace::test
