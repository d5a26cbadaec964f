// The one summation that every host transport uses: its bits depend on the values and the order of
// ranks, on nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/dtype.h"

namespace millrace {

constexpr bool CanSum(DType dtype) noexcept {
  return dtype == DType::kF32 || IsFloatOf16Bits(dtype) || dtype == DType::kF64;
}

// out[i] = (((terms[0][i] + terms[1][i]) + terms[2][i]) + ...) for i in [0, n); all [n] of `dtype`.
// f32, bf16 and f16 accumulate in f32, the latter two round once at the end; f64 accumulates in
// double. `out` may be exactly one of the terms; no other overlap. CanSum(dtype), terms >= 1.
void RankOrderSum(DType dtype, std::span<const std::byte* const> terms, std::byte* out, int64_t n);

}  // namespace millrace
