// Passes of the scan on tensor cores that more than one op has.
#pragma once

#include "kernels/cuda/mamba/ssd_launch.h"

namespace millrace::cuda {

// Decays and steps by head; the states before each chunk, or their gradients behind it.
void LaunchSsdSteps(const SsdArgs& args, const Launch& launch);
template <bool kGradient>
void LaunchSsdStates(const SsdArgs& args, const Launch& launch);

// d_b, d_c, d_dt and sums of d_a_log, once d_x and the gradients of pairs are there.
void LaunchSsdGroupGradients(const SsdArgs& args, const Launch& launch);

}  // namespace millrace::cuda
