// What is recorded of a step whose gradients are scaled: fp16's.
#pragma once

#include <cstdint>

namespace millrace {

struct ScalingFigures {
  double loss_scale = 0;    // of the step
  int64_t scale_downs = 0;  // of the run so far: overflows, whose updates were skipped
};

}  // namespace millrace
