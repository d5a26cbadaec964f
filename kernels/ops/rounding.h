// Stochastic rounding of AdamW's moments to bf16, and where its random bits come from: a
// counter-based generator, so that any rank knows any element's. On CUDA: step/adamw_narrow.cu.
#pragma once

#include <bit>
#include <cstdint>

#include "runtime/base/dtype.h"
#include "runtime/base/philox.h"

namespace millrace {

// Four words for elements [4 group, 4 group + 4) of the parameter `key`, one each, in update `t`:
// the low half rounds the first moment, the high half the second.
constexpr PhiloxCounter MomentWords(uint64_t key, int64_t group, int64_t t) {
  return PhiloxBlock(key, static_cast<uint64_t>(t), static_cast<uint64_t>(group));
}

// One of the two neighbours of `value` in bf16, the upper one (in magnitude) with the probability
// of the distance from the lower: with `bits` uniform in [0, 2^16) the mean is `value`. What bf16
// holds stays what it is; infinities and NaN are rounded as by ToBFloat16.
constexpr BFloat16 RoundStochastically(float value, uint32_t bits) {
  const auto word = std::bit_cast<uint32_t>(value);
  if ((word & 0x7f800000u) == 0x7f800000u) return ToBFloat16(value);
  return BFloat16{static_cast<uint16_t>((word + bits) >> 16)};
}

}  // namespace millrace
