// SampleOp's choice of one row, on the host: what the CPU kernel calls, and who has logits in host
// memory. The CUDA kernel takes the same steps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops/sample_ops.h"

namespace millrace {

// Whether all are finite.
bool AllFinite(std::span<const float> logits);

// e^-((max - logit) / temperature) in units of 2^-40; temperature > 0, logit <= max.
uint64_t SampleWeight(float max, float logit, float temperature);

// The token that `params` draw from finite logits [V], V > 0.
int32_t SampleToken(std::span<const float> logits, const SampleParams& params);

// The first `count` tokens (all, if there are less) in the order of falling logits, ties by the
// lower id.
std::vector<int32_t> LikeliestTokens(std::span<const float> logits, int64_t count);

}  // namespace millrace
