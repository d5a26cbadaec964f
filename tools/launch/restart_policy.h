// When a supervisor starts a run again, and when it gives up. Pure: no clock, no process.
//
// Final     An end that the same command would only repeat is not retried: done, stopped on
//           request, wrong configuration, data, checkpoint, too little memory, stopped by the
//           policy for non-finite losses.
// Progress  A step beyond all that were done before, or a newer checkpoint. Without any in between,
//           the same step may not fail twice, nor may kFruitlessStarts attempts in a row end before
//           their first step.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "tools/launch/job_end.h"

namespace millrace {

// How an attempt ended.
struct AttemptEnd {
  Verdict verdict;
  bool trained = false;    // it came to its first step, whether or not that was done
  int64_t step = 0;        // the last step that is done
  int64_t checkpoint = 0;  // the newest usable checkpoint's step; 0: none
};

struct Decision {
  bool restart = false;
  double wait_s = 0;      // before it
  bool is_final = false;  // done, or the same command would only repeat it
  std::string stop;       // why there is no restart, where one could have been expected
};

inline constexpr int kFruitlessStarts = 3;

class RestartPolicy {
 public:
  // `step`: steps done so far.
  RestartPolicy(int64_t max_restarts, int64_t step)
      : max_restarts_(max_restarts), furthest_(step), checkpoint_(step) {}

  Decision After(const AttemptEnd& end);
  int64_t restarts() const { return restarts_; }  // that were decided so far

 private:
  const int64_t max_restarts_;
  int64_t furthest_, checkpoint_;
  int64_t restarts_ = 0;
  int fruitless_ = 0;         // attempts in a row that ended before their first step
  std::set<int64_t> failed_;  // last steps of the attempts that ended since the last progress
};

}  // namespace millrace
