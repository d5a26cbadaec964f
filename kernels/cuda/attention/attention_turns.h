// The border between attention_own.cc, which checks, and attention_turns_grad.cu, which runs.
#pragma once

#include <cstddef>

#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/ops/attention_choice.h"
#include "runtime/base/cuda/launch.h"

namespace millrace::cuda {

// Every operand as cuda::WhyNotInTurn allows, at multiples of 16 bytes, as is `memory`, divided as
// `scratch` says.
void LaunchInTurnAttentionGrad(const AttentionGradArgs& args, const InTurnScratch& scratch,
                               std::byte* memory, const Launch& launch);

// Whether this program has it for a GPU of that compute capability.
bool HasInTurn(int major, int minor);

}  // namespace millrace::cuda
