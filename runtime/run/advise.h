// The fastest plans of a configuration at its tokens per step, by simulation: `plan --advise`.
// Pure.
//
// Searched  axes (kAdvisedAxes: every way to divide the world between them), train.micro_batch (the
//           divisors of a rank's sequences; accumulate follows), sharding.reshard,
//           memory.recompute, memory.prefetch. Everything else is the configuration's.
// How       Of each candidate is known what it takes at least: first the floor of what a rank
//           computes and exchanges (FloorOf), whatever shards it, then a draft of it (DraftStep: no
//           addresses, no edges) as simulated. The one that may be fastest is always looked at
//           next, and planned and proved in full when its draft is; the rest is left when none of
//           it can be among the best. Floors and drafts tell what does not fit, too.
// Order     by simulated seconds, then bytes. Equal inputs give equal advice. Of combinations that
//           are one and the same step, the first is told.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/plan/cost/timeline.h"
#include "runtime/run/assemble.h"

namespace millrace {

// What a candidate would run on: the machine as its ranks use it, and what planning has to know.
struct AdviseTarget {
  Machine machine;  // not yet shared between the ranks
  BackendTraits traits;
};

struct AdviseInput {
  const Config& config;
  int world = 1;
  std::function<AdviseTarget(const Config&)> target;
  StreamJoin join = StreamJoin::kStepEnd;
  size_t most = 5;  // plans in the answer
};

struct AdvisedPlan {
  Config config;
  std::string choices;  // "parallel.replicate=8 train.micro_batch=2 ..."
  Mesh mesh;
  int64_t arena_bytes = 0,
          limit_bytes = 0;          // of the training plan; what it must not exceed, 0: none
  int64_t wire_bytes = 0;           // sent by one rank in a step
  double seconds = 0, exposed = 0;  // of a step; of it, compute waiting for communication
};

struct Advice {
  std::vector<AdvisedPlan> best;  // fastest first
  int64_t tokens_per_step = 0;
  int considered = 0;  // combinations but of prefetch
  int drafted = 0, planned = 0;
};

// Errors: kDoesNotFit where no candidate fits, naming the one that needs least; kConfig.
Advice Advise(const AdviseInput& input);

}  // namespace millrace
