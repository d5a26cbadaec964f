// Lists of element ranges as an argument of a kernel: a captured graph keeps a copy, so nothing on
// the device has to outlive the call.
#pragma once

#include <cstdint>

#include "kernels/ops/step_ops.h"

namespace millrace::cuda {

inline constexpr int kRangesPerLaunch = 192;  // 3 KiB of a kernel's 4 KiB of arguments

struct Ranges {
  int count = 0;
  Range of[kRangesPerLaunch];
};

}  // namespace millrace::cuda
