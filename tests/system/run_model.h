// Runs a tiny model for a few steps on in-process ranks, and keeps all that
// two runs can be compared by.
//
// Batches  row r of microbatch m on data rank k of n in step s is global sample s*G + (m*n + k)*B +
//          r, as the sample order deals them out, and its tokens are a function of that number
//          alone:
//          worlds with the same global batch G see the same batch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/comm_factory.h"
#include "comm/comm_set.h"
#include "kernels/ops/kernel_table.h"
#include "runtime/config/config.h"
#include "runtime/exec/engine.h"
#include "runtime/run/assemble.h"
#include "tests/support/injection.h"
#include "tests/support/ranks.h"

namespace millrace::test {

struct Trial {
  Config config;
  int world = 2;
  int64_t steps = 3;
  CommSharing sharing = CommSharing::kSeparate;
  std::optional<uint64_t> adversary_seed;
  const KernelTable* kernels = nullptr;  // null: the device's
  bool all_plans = false;                // evaluation and generation, too
  PlanSelection plans = {};              // in place of these; none: they
  bool releasable = false;               // EngineOptions::releasable
};

// Four blocks of sizes that divide nothing: no two of width, rows, vocabulary and hidden width
// share a factor with the worlds' 2, 3, 4 that would make shards even without padding. Base of all
// comparisons: every option at its default but grad_sync last, which allows all concats.
Config TinyConfig(ModelConfig::Family family);

// What one rank works with inside RunRank and RunEngines.
struct RankContext {
  Engine& engine;
  const AssembledRun& run;
  int rank = 0, world = 1;
};

AssembledRun PlanOf(const Trial& trial);

// Calls fn with a fresh engine (weights not initialised) of this rank, whose peers are the
// factory's: every rank of its world calls this with the same trial and plans.
void RunRank(CommFactory& factory, const Trial& trial, const AssembledRun& run,
             const std::function<void(RankContext&)>& fn);
void RunRank(const RankSetup& setup, const Trial& trial, const AssembledRun& run,
             const std::function<void(RankContext&)>& fn);

// Plans once, then calls fn with a fresh engine (weights not initialised) on every rank's thread.
void RunEngines(const Trial& trial, const std::function<void(RankContext&)>& fn);

// tokens [accumulate, B, T+1] of `rank` in `step`.
std::vector<int32_t> BatchOf(const Config& config, int world, int rank, int64_t step);
std::vector<int32_t> TokensOfSample(const Config& config, int64_t sample);  // [T+1]
int64_t ValidTokens(const Config& config, int world);

// One step on the batch that belongs to it.
StepScalars StepOn(RankContext& rank, const Config& config, int64_t step,
                   const Injection& injection = {});

struct Outcome {
  std::vector<StepScalars> scalars;  // by step; equal on all ranks, which RunTrial requires
  std::string param_hash, optimizer_hash;
  std::vector<StepCounters> counters;  // over all steps, by rank; TrainOnRank: of this rank alone
  AssembledRun run;
  std::string plan_hash;
  int64_t arena_bytes = 0;      // allocated by an engine
  int shard_communicators = 0;  // of the ranks that shard: 2, or 1 when shared
  int64_t poisoned_words = 0;   // 8 bytes of 0xFF each in the arena, behind the last step

  // Everything that must be equal, bit for bit, in runs that differ only in how they work: losses,
  // gradient norms, clip scales, learning rates, Adam's t, and the hashes of parameters and
  // moments. A line per step, so that a failing comparison shows where they part.
  std::string Bits() const;
  const StepPlan& plan() const { return run.plans.Of("train"); }
};

// Initialises the weights from train.seed and trains trial.steps steps.
Outcome TrainOnRank(RankContext& rank, const Trial& trial);

// The same on trial.world in-process ranks.
Outcome RunTrial(const Trial& trial);

}  // namespace millrace::test
