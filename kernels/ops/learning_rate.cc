#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/ops/step_ops.h"

namespace millrace {
namespace {

// Share of a decay that is over after `done` of `length` steps; a decay of
// length 0 is over at once.
double Share(int64_t done, int64_t length) {
  if (done < 0) return 0;
  if (done >= length) return 1;
  return static_cast<double>(done) / static_cast<double>(length);
}

}  // namespace

double LearningRateAt(const LearningRate& s, int64_t step) {
  if (step < s.warmup) return s.lr * static_cast<double>(step + 1) / static_cast<double>(s.warmup);
  switch (s.kind) {
    case ScheduleKind::kConstant:
      return s.lr;
    case ScheduleKind::kCosine: {
      const double share = Share(step - s.warmup, s.decay_steps);
      return s.min_lr + (s.lr - s.min_lr) * (1 + std::cos(std::numbers::pi * share)) / 2;
    }
    case ScheduleKind::kWsd: {
      const double share = Share(step - (s.total_steps - s.decay_steps), s.decay_steps);
      return s.lr + (s.min_lr - s.lr) * share;
    }
  }
  return s.lr;
}

}  // namespace millrace
