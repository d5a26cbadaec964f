// The integer arithmetic of sizes. Nothing is negative, divisors are positive.
#pragma once

#include <cstdint>

namespace millrace {

// n / by, rounded up.
constexpr int64_t CeilDiv(int64_t n, int64_t by) { return (n + by - 1) / by; }

// The least multiple of `to` that is not below n.
constexpr int64_t RoundUp(int64_t n, int64_t to) { return CeilDiv(n, to) * to; }

}  // namespace millrace
