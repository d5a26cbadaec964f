// The fastest plans of a configuration at its tokens per step, by simulation: `plan --advise`.
// Pure.
//
// Searched  axes (kAdvisedAxes: every way to divide the world between them), train.micro_batch (the
//           divisors of a rank's sequences; accumulate follows), sharding.reshard,
//           memory.recompute, memory.prefetch. Everything else is the configuration's.
// How       Each combination but of prefetch is drafted (DraftStep: no addresses, no edges).
//           Drafts whose lower bound fits are simulated without edges, which is nearly a lower
//           bound of the time, sorted by it, and planned and proved in full from the fastest on,
//           until no draft that is left can be among the best.
// Order     by simulated seconds, then bytes. Equal inputs give equal advice.
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
  int drafted = 0, planned = 0;
};

// Errors: kDoesNotFit where no candidate fits, naming the one that needs least; kConfig.
Advice Advise(const AdviseInput& input);

}  // namespace millrace
