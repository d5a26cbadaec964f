// The figures of the newest step, for whoever shows them while a run goes on, and their text for
// Prometheus (text exposition format 0.0.4).
//
// Source  prometheus.io/docs/instrumenting/exposition_formats, "Text-based format".
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/record/eval_scores.h"
#include "runtime/record/policy_figures.h"
#include "runtime/record/router_figures.h"
#include "runtime/record/scaling_figures.h"
#include "runtime/record/source_figures.h"

namespace millrace {

struct StepFigures {
  int64_t step = 0;  // 1-based: steps done
  double loss = 0, grad_norm = 0, lr = 0;
  double tokens_per_s = 0;  // all ranks
  double step_seconds = 0;
  int64_t device_bytes = 0;  // most in use so far: rank 0's device, or its process's resident size
  int64_t skipped = 0;       // updates skipped so far
  int64_t tokens = 0;        // seen so far, all ranks
  int64_t roll_backs = 0;    // that guards have made so far
  std::vector<RouterFigures> routers = {};  // of each block with experts
  // With such blocks: pairs that steps had no room for, of this call so far, and batches that wait
  // to run again.
  int64_t dropped_pairs = 0, waiting_batches = 0;
  bool balanced_gate = false;                  // a fixed pattern chooses their experts
  std::vector<SourceFigures> sources = {};     // of each of data.sources
  std::optional<PolicyFigures> policy = {};    // of a policy gradient
  std::optional<ScalingFigures> scaling = {};  // of gradients in fp16
  std::vector<EvalScores> scores = {};         // the newest of eval.tasks

  // Checkpoints of this call.
  struct Saves {
    int64_t published = 0, failed = 0;
    int64_t step = 0;          // of the newest
    double stall_seconds = 0;  // that training waited for one last
    double seconds = 0;        // from the beginning of the newest to its publication
  };
  std::optional<Saves> saves = {};  // once there is something to say
};

// NaN and infinities as Prometheus writes them; other values read back as the same double.
std::string PrometheusText(const StepFigures& figures);

// Where training puts a step's figures, and others take them: by any threads.
class NewestFigures {
 public:
  // Scores stay until there are newer ones.
  void Store(const StepFigures& figures);
  // PrometheusText; empty before the first Store: no figure is made up.
  std::string Text() const;

 private:
  mutable std::mutex mutex_;
  std::optional<StepFigures> figures_;  // under mutex_
};

}  // namespace millrace
