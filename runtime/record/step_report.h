// What a run records of a step, of its saves and of its roll-backs: plain values that the loop
// fills.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/record/eval_scores.h"
#include "runtime/record/policy_figures.h"
#include "runtime/record/router_figures.h"
#include "runtime/record/scaling_figures.h"
#include "runtime/record/source_figures.h"

namespace millrace {

struct RollBack {
  int64_t from = 0;  // the step whose numbers were bad
  int64_t to = 0;    // the checkpoint's; 0: the beginning
  std::string why;
  bool operator==(const RollBack&) const = default;
};

// What was seen of saves between two lines of metrics.jsonl.
struct SaveFigures {
  std::optional<double> stall_ms;     // that training waited for a checkpoint
  std::optional<int64_t> saved_step;  // whose checkpoint was published
  std::optional<double> save_ms;      // from its beginning until then
  std::string error;                  // why one was not
};

// Of a call of Train.
struct SaveTotals {
  int64_t published = 0, failed = 0;
  int64_t newest = 0;                     // step that was published last
  std::vector<double> stall_ms, save_ms;  // of each save; of each that was published
};

struct StepReport {
  int64_t step = 0;  // 1-based: steps done, this one included
  int64_t steps = 0;
  double loss = 0, grad_norm = 0, lr = 0;
  int64_t tokens = 0;  // seen so far, all ranks
  double step_ms = 0, tokens_per_s = 0, mfu = 0;
  double enqueue_us = 0;  // host time to issue the step; on a host device, to run it
  // Most memory in use so far: this rank's device, or its process's resident size.
  int64_t peak_bytes = 0;
  int64_t skipped = 0;   // updates skipped so far
  bool applied = true;   // the update; else why not:
  std::string offender;  // "gradient of unit h.0 on rank 1", "loss 8.1 above 3.2"
  std::optional<double>
      max_loss;  // that guard.loss_spike allowed, where it had a window full of losses
  // Whose data it read: `step`, later after roll-backs, earlier where batches have run again.
  int64_t data_step = 0;
  bool again = false;  // a batch that an earlier step had no room for (model.moe.receive_capacity)
  // Pairs of token and expert that it had no room for, then not applied; of the call so far; and
  // batches that wait to run again.
  int64_t dropped_pairs = 0, dropped_so_far = 0, waiting_batches = 0;
  std::vector<RollBack> rolled_back;  // to the step before this one
  int64_t roll_backs = 0;             // of the run so far
  // Held-out loss after this step, when train.eval_every asks for it.
  std::optional<double> eval_loss;
  std::vector<SourceLoss> eval_sources;   // of which eval_loss is the mean
  std::vector<SourceFigures> sources;     // of each of data.sources
  std::vector<EvalScores> scores;         // of each of eval.tasks, where they are due
  std::vector<RouterFigures> routers;     // of each block with experts
  bool records_loads = false;             // metrics.jsonl has their loads (run.loads_every)
  std::optional<PolicyFigures> policy;    // of a policy gradient
  std::optional<ScalingFigures> scaling;  // of gradients in fp16
  bool balanced_gate = false;             // a fixed pattern chooses experts (model.moe.gate)
  double eta_s = 0;
  SaveFigures saves;  // since the step before
};

}  // namespace millrace
