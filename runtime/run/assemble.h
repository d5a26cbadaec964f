// From a configuration to everything that is planned: model, layout, programs, plans. Pure: no
// device, no communicator, no files, so that `plan` on a laptop and `train` on a cluster build the
// same values with the same code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model.h"
#include "runtime/base/policies.h"
#include "runtime/config/config.h"
#include "runtime/plan/cost/communicators.h"
#include "runtime/plan/schedule/planner.h"
#include "runtime/plan/schedule/recompute.h"
#include "runtime/plan/state_layout.h"
#include "runtime/record/plan_stage.h"
#include "runtime/run/model_options.h"

namespace millrace {

struct AllocatorTable;  // runtime/plan/schedule/allocator_table.h

// What planning has to know about a backend and its transport.
struct BackendTraits {
  Backend backend = Backend::kCpu;
  // Staging per communicator purpose; ScratchBytes of comm/host_collectives.h for host transports.
  int64_t comm_scratch_bytes = 0;
  int64_t device_arena_bytes = 0;  // what a rank's device has for the arena; 0: not known
};

// Plans by name: "train", "eval" (one microbatch), "generate" (the logits of one token), "score"
// (the losses of a microbatch's tokens), "score_likeliest" (and the likeliest ones in their
// places), and "inference", which is several (generate/inference_plans.h).
using PlanSelection = std::vector<std::string>;
// A training step with room for all rows that experts may receive: comes with "train" where that
// has less (model.moe.receive_capacity).
inline constexpr std::string_view kAgain = "again";

struct AssembledRun {
  ModelSpec spec;
  ShardLayout layout;
  PlanOptions options;
  RecomputeChoice recompute;  // of the training plan
  RunPlans plans;
  FlopsPerToken flops;  // of the training plan's model
};

// The ranks of a run. Error(kConfig): their number is not that of the axes.
Mesh MeshOf(const Config& config, int world);
ExchangeNeeds ExchangeNeedsOf(const Config& config);
PrecisionPolicy PrecisionOf(const Config& config);
// execution.graph, but kOff with execution.checked, which uses none.
GraphMode GraphInForce(const Config& config);
// What this way of executing means for the run, a line each: for the plan's text and the beginning
// of a run.
std::vector<std::string> ExecutionNotes(const Config& config);
PlanOptions PlanOptionsOf(const Config& config, int world, const BackendTraits& traits);

// Of searches' programs, what the backward does about what exchanges have brought to the forward:
// exchanges it again, which takes the fewest bytes, or finds it kept, which mostly takes less time.
// A run's plan is one of the two or between them (plan/schedule/kept_exchanges.h).
enum class Exchanged { kAgain, kKept };

// A training microbatch on one rank before parameters are sharded, for searches.
// memory.recompute is not auto.
Program LowerTraining(const Config& config, int world, const BackendTraits& traits,
                      Exchanged exchanged = Exchanged::kAgain);

// The training plan without addresses and edges (DraftStep), for searches. memory.recompute is not
// auto.
struct Drafted {
  Mesh mesh;
  StepPlan plan;
};
Drafted DraftTraining(const Config& config, int world, const BackendTraits& traits,
                      Exchanged exchanged = Exchanged::kAgain);

// Why linears in FP8 do not take a sequence's rows on a rank; "" where they do. Asked of every
// plan: one of a single sequence has no more rows than that.
std::string WhyNoFloat8Rows(const Config& config, Backend backend);

// Plans what is selected for `world` ranks and checks each plan (CheckPlan), and how they follow
// each other (CheckSeams).
// Errors: kConfig, kDoesNotFit.
AssembledRun Assemble(const Config& config, int world, const BackendTraits& traits,
                      const PlanSelection& selection);

// The training step with each allocator. `run` is Assemble's for this configuration, with a
// training plan.
AllocatorTable CompareAllocators(const Config& config, const AssembledRun& run);

// How the training step came about, stage by stage. `run` is Assemble's for this configuration,
// with a training plan, whose text is that of the last two stages.
std::vector<PlanStage> PlanStages(const Config& config, const AssembledRun& run);

}  // namespace millrace
