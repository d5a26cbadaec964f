// How long a kernel takes by its shape, beside what launches it. Pure arithmetic.
//
// A product [m, k] x [k, n] is cut into tiles; a device's units compute one each at a time, so that
// the last wave of tiles takes as long as a full one, and a tile's first loads and last stores cost
// as much as so much more k. Where tiles are fewer than units, k is cut as well and the parts, f32,
// are summed: written and read once more. The machine's library is taken to find the best tile and
// cut:
//   seconds = min over tile t and cut s of
//             waves(t, s) * units * 2 t.m t.n (k/s + gemm_k_start) / (rate t.efficiency)
//             + (s > 1) 4 s m n (read and write) / memory
//   waves(t, s) = ceil(ceil(m/t.m) ceil(n/t.n) s / units)
// Without units: 2 m n (k + gemm_k_start) / rate. Shapes that were timed correct it: times the
// weighted geometric mean of measured/by rule, weights 1/d^2, d the distance of the binary
// logarithms of m, n, k (a shape that was timed itself: exactly its time).
#pragma once

#include <cstdint>

#include "kernels/ops/shape.h"
#include "runtime/plan/cost/machine.h"

namespace millrace {

double ProductSeconds(const Machine& machine, DType dtype, int64_t m, int64_t n, int64_t k);

// Of the units' time in that, the share in which they have a tile: what is left is there for other
// kernels. 1 without units.
double ProductBusy(const Machine& machine, DType dtype, int64_t m, int64_t n, int64_t k);

// Of `products` such products in one kernel, whose tiles share the units; k is not cut, and shapes
// that were timed say nothing of it.
double GroupedSeconds(const Machine& machine, DType dtype, int64_t products, int64_t m, int64_t n,
                      int64_t k);

// Of causal attention, FLOPs of the lower triangle. The narrowest class that holds the head dim,
// else the widest; in it between the two lengths around `length`, in proportion to its logarithm.
enum class Pass { kForward, kBackward };
double AttentionFlops(const Machine& machine, int64_t length, int64_t head_dim, DType operands,
                      Pass pass);

// Attention, forward and gradient, that Machine::capped_attention and capped_wide_attention are of:
// heads of up to 64, and wider ones.
struct CappedShape {
  int64_t head_dim, length;
};
inline constexpr CappedShape kCappedAttention = {64, 4096}, kCappedWideAttention = {128, 8192};
double TrainingAttentionFlops(const Machine& machine, const CappedShape& shape, DType operands);

}  // namespace millrace
