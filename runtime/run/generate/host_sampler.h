// Draws tokens from logits on the host, by the rules of Sampling (runtime/infer/token_model.h).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops/sample_ops.h"
#include "runtime/infer/token_model.h"

namespace millrace {

// The same for SampleOp. `drawn`: as below.
SampleParams ParamsOf(const Sampling& sampling, int64_t drawn);

// logits [V], not empty; `drawn`: tokens drawn before in this sequence. Error(kNonFinite): one is
// not finite.
SampledToken DrawToken(std::span<const float> logits, const Sampling& sampling, int64_t drawn);

// `token` in place of a draw, with `top` likeliest ones.
SampledToken ScoreToken(std::span<const float> logits, int32_t token, int32_t top);

}  // namespace millrace
