// What a run does about a step whose numbers cannot be trusted: skip its update, roll back, stop.
// Policy alone: no device, no files, no ranks; every rank has its own and feeds it the same.
//
// Steps    are counted from 1 here: the number of steps done with it.
// Spike    A loss above median + factor * max(1.4826 * MAD, 0.001 * median) of the last `window`
//          finite losses, MAD the median absolute deviation from their median; 1.4826 makes it the
//          standard deviation of a normal distribution. None before there are `window` of them.
//          Losses of spikes enter the window, too: a level that has changed for good is no spike
//          once it is half of it.
// Source   Leys et al., "Detecting outliers: Do not use standard deviation around the mean, use
//          absolute deviation around the median", J. Exp. Soc. Psychol. 49 (2013). The least
//          deviation is ours: losses that are all equal make the next bit no spike.
// Lag      The limit for step n knows the losses of steps up to n - 2, also where more are known:
//          with a step in flight no more are, and the same steps shall be spikes on every device.
// Data     A roll-back from step n to step c leaves out the data of steps c+1 ... n.
// Scaling  A step that has scaled the gradients of fp16 down is skipped and no incident: no policy
//          is asked.
// Overflow A step that receive buffers had no room for is skipped, whatever the policies say, and
//          its batch waits. Step s runs the batch that has waited longest, if since step s - 2 or
//          earlier (as for Lag), by the plan that has room for all; else the next one of the data.
//          Batches are numbered from 1, as the data have them.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "runtime/base/step_scalars.h"
#include "runtime/config/config.h"
#include "runtime/record/step_report.h"

namespace millrace {

enum class GuardAction { kGoOn, kSkip, kRollBack, kStop };

// Of the step that is to run it, or that could not.
struct Batch {
  int64_t step = 0;
  int64_t number = 0;
  bool again = false;  // it has overflown before
  bool operator==(const Batch&) const = default;
};

class Guard {
 public:
  explicit Guard(const GuardConfig& config) : config_(config) {}

  // For StepScalars::max_loss of `step`; 0: no limit.
  double MaxLoss(int64_t step) const;

  // What `step` is to run: asked once of each step, in order.
  Batch Next(int64_t step);

  // Batches of the data that the steps to `step`, the last that Next was asked of, have run or left
  // out: how far the run is in its data.
  int64_t Drawn(int64_t step) const { return step + data_shift_ - runs_again_; }

  // What is to be done about a step that has run, in the order of steps. kRollBack only while fewer
  // than guard.max_roll_backs were made; then kStop.
  GuardAction Judge(const Batch& ran, const StepScalars& scalars);

  // A roll-back was made: `state` is what State() was at the checkpoint that was
  // loaded, "{}" at the beginning.
  void RolledBack(const RollBack& roll_back, const std::string& state);

  // Batches that have overflown and not run again yet, longest first.
  const std::deque<Batch>& waiting() const { return waiting_; }
  const std::vector<RollBack>& roll_backs() const { return roll_backs_; }  // of the run, in order
  bool may_roll_back() const {
    return static_cast<int64_t>(roll_backs_.size()) < config_.max_roll_backs;
  }

  // All of it as JSON, every bit: part of a checkpoint. Restore takes "{}" for a new run's, and
  // what another configuration has left; Error(kCheckpoint): it is none of ours.
  std::string State() const;
  void Restore(const std::string& state);

 private:
  struct Loss {
    int64_t step = 0;
    double loss = 0;
  };

  GuardConfig config_;
  // Of the last window + 1 steps with a finite one, where spikes are watched for.
  std::deque<Loss> losses_;
  int64_t data_shift_ = 0;  // batches that roll-backs have left out
  std::deque<Batch> waiting_;
  int64_t runs_again_ = 0;  // steps that have run batches again
  Batch last_again_;        // the last of these
  std::vector<RollBack> roll_backs_;
};

}  // namespace millrace
