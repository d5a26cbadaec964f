// Division of 31-bit numbers by a number that is known on the host: a multiplication and a shift
// (T. Granlund, P. Montgomery, Division by Invariant Integers using Multiplication, 1994).
#pragma once

#include <cstdint>

namespace millrace::cuda {

struct Divisor {
  uint32_t divisor = 1, multiplier = 1, shift = 0;

  Divisor() = default;
  // 1 <= d < 2^31.
  explicit Divisor(int64_t d) : divisor(static_cast<uint32_t>(d)) {
    while ((int64_t{1} << shift) < d) ++shift;
    multiplier = static_cast<uint32_t>(
        ((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor)) / divisor + 1);
  }

#ifdef __CUDACC__
  // n / divisor for n < 2^31.
  __device__ uint32_t Quotient(uint32_t n) const { return (__umulhi(n, multiplier) + n) >> shift; }
#endif
};

}  // namespace millrace::cuda
