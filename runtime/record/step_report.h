// What a run records of a step, of its saves and of its roll-backs: plain values that the loop
// fills.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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
      max_loss;           // that guard.loss_spike allowed, where it had a window full of losses
  int64_t data_step = 0;  // whose data it read: `step`, and later after roll-backs
  std::vector<RollBack> rolled_back;  // to the step before this one
  int64_t roll_backs = 0;             // of the run so far
  // Held-out loss after this step, when train.eval_every asks for it.
  std::optional<double> eval_loss;
  double eta_s = 0;
  SaveFigures saves;  // since the step before
};

}  // namespace millrace
