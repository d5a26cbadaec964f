// Matrix products whose every element is known without computing one: a machine that gets
// one wrong must not train.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/ops/cost.h"
#include "kernels/ops/kernel_table.h"
#include "runtime/base/device.h"

namespace millrace {

// The products [n, n] of two [n, n] matrices in f32, and in bf16 with an f32 result, on `device`.
// a[m,k] = p[m] q[k] and b[k,j] = s[k] t[j] of small integers, so that c[m,j] = p[m] t[j] sum over
// k of q[k] s[k]: all numbers on the way are integers below 2^24, and whatever the order of
// additions is, every element is exact. n at most 2^18. "" when all are right; else how many are
// wrong, and the first. Errors: the device's.
std::string KnownAnswerProducts(Device& device, const KernelTable& kernels, Backend backend,
                                int64_t n);

}  // namespace millrace
