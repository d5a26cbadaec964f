// Recomputation that fits: in how many block units a training step computes each cheap kind of node
// (norms, activations) or everything again, so that its arena stays within a limit at the least
// cost.
//
// Search   Candidates are prefixes: activations again in the first a block units, norms in the
//          first b, and so for each cheap kind; only when all of them in all units are not enough,
//          everything in the first c. What a prefix drops is the longest-lived of what is saved, so
//          it saves at least as much as any other choice of as many units. A kind's cost is how
//          much longer the compute stream is busy (timeline.h) with it in every unit; its bytes are
//          those of the outputs it drops. Of the combinations (a, b, ...) those stay that no
//          cheaper one undercuts; among them the first that fits is found by bisection, and units
//          that it does not need after all are taken out again. Tries go by the lower bound of the
//          arena; the one that is chosen, and where it is above its bound those behind it, are
//          placed by the real allocator: what is chosen fits, and with one unit less of a cheap
//          kind it does not.
// Rates    Those of one machine per backend (the H100's for CUDA), so that `plan` on a laptop and
//          the ranks of a cluster choose alike; but where choices fill the device and
//          execution.peer_memory is auto, which `plan` counts as the most that either transport
//          takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan/cost/machine.h"
#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lower.h"
#include "runtime/plan/schedule/planner.h"

namespace millrace {

struct RecomputeInput {
  const ShardLayout& layout;
  const StateLayout& states;     // of the run
  const SemanticGraph& forward;  // of a training step, without a backward
  const LowerOptions& lower;
  // Reshard kAuto counts as kAfterForward: nothing is recomputed to stay gathered.
  const PlanOptions& options;
  int64_t device_bytes = 0;  // what a rank's device has for the arena; 0: not known
};

// Block units by what they compute again.
struct RecomputeCounts {
  struct OfKind {
    std::string kind;
    int64_t units = 0;
    bool operator==(const OfKind&) const = default;
  };
  int64_t blocks = 0;         // all
  std::vector<OfKind> cheap;  // by name; those with everything are among them
  int64_t everything = 0;
  bool operator==(const RecomputeCounts&) const = default;
};

// Of what exchanges bring to a microbatch's forward and its backward needs again.
struct KeptExchanges {
  int64_t kept = 0, all = 0;               // exchanges
  int64_t held_bytes = 0, wire_bytes = 0;  // of those kept: their results, and what a rank receives
  bool operator==(const KeptExchanges&) const = default;
};

struct RecomputeChoice {
  std::vector<UnitRecompute> units;  // by UnitId
  RecomputeCounts counts;
  bool searched = false;    // by ChooseRecompute; else given
  int64_t saved_bytes = 0;  // searched: by how much it makes the arena smaller
  KeptExchanges exchanges;  // by KeepExchanges (kept_exchanges.h)
};

// What choices go by, the same on every rank and wherever `plan` runs.
Machine MachineOfChoices(Backend backend, int world);

RecomputeChoice GivenRecompute(const SemanticGraph& forward, Recompute policy);

// Within options.budget_bytes, else within device_bytes; with neither, nothing is recomputed. Pure.
// Errors  kDoesNotFit naming need and budget when the most recomputation is above the
//         budget. A device too small is no error: its figures are about right at best, and
//         the most is chosen.
RecomputeChoice ChooseRecompute(const RecomputeInput& input);

// "activations in 3, norms in 1 of 12 block units", "nothing"
std::string ToString(const RecomputeCounts& counts);

}  // namespace millrace
