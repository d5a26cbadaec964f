// summary.json, what a run has to say at its end. Rank 0 writes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/record/plan_stage.h"
#include "runtime/record/step_report.h"

namespace millrace {

struct TrainResult {
  int64_t first_step = 0;  // where this call began
  int64_t last_step = 0;   // steps done in all
  // train.steps were done already: nothing was trained, and no file changed but a summary.json that
  // was missing (rebuilt_summary.h).
  bool complete_before = false;
  bool preempted = false;  // stopped on request, state saved
  // Training loss of the first and last step of this call; none where a
  // roll-back has undone all of them.
  std::optional<double> first_loss, last_loss;
  std::optional<double> eval_before, eval_after;  // held-out loss, when train.eval_every is set
};

using NamedCounts = std::vector<std::pair<std::string, int64_t>>;  // in the order of the file

// Figures that a plan predicts and a run measures: of rank 0, for the steps of one call.
struct RunFigures {
  NamedCounts counters;
  int64_t wire_bytes = 0;    // gathered and reduced, of all collectives
  int64_t arena_bytes = 0;   // allocated
  double step_ms = 0;        // measured: the median; NaN: not known
  double tokens_per_s = 0;   // all ranks; likewise
  int64_t device_bytes = 0;  // most in use of the rank's device; 0: not known
};

struct Summary {
  TrainResult result;
  std::string param_hash, optimizer_hash, plan_hash;
  std::string tuning_hash;  // of the algorithms in force; "" where there is nothing to tune
  std::vector<PlanStage> plan_stages;
  NamedCounts counters;  // of rank 0, over all steps of the run
  std::optional<int64_t> resident_before_arena, resident_peak;
  int64_t world = 1;
  bool peer_memory = false;    // whether gathers and reductions went over peers' memory
  bool balanced_gate = false;  // a fixed pattern chose experts
  // That receive buffers had no room for and that have not run again.
  int64_t waiting_batches = 0;
  std::optional<double> seconds;
  RunFigures predicted, measured;
  std::optional<SaveTotals> saves;
  int64_t lower_bound_bytes = 0;  // of the training plan's arena
  std::string machine;            // that the prediction is for
  std::string rebuilt_from;       // checkpoint; "": written by the call that ended the run
  std::vector<int64_t> unreadable_lines = {};  // of metrics.jsonl, if it was rebuilt
};
// Whether there is one that is JSON.
bool HasSummary(const std::string& run_dir);
void WriteSummary(const std::string& run_dir, const Summary& summary);

}  // namespace millrace
