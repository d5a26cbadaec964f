// The border between attention_own.cc, which checks, and attention_rows.cu, which runs.
#pragma once

#include "kernels/cuda/attention/attention_launch.h"
#include "runtime/base/cuda/launch.h"

namespace millrace::cuda {

// Every operand as cuda::WhyNotRows allows, at multiples of 16 bytes. For GPUs that HasInTurn of.
void LaunchAttentionRows(const AttentionArgs& args, const Launch& launch);

}  // namespace millrace::cuda
