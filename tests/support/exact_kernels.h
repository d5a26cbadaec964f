// The CPU's kernels with exact stand-ins for what is not linear: on integers every result is an
// integer, so that nothing depends on the order or the grouping of sums, and a model split any way
// has the bits of the whole one. Products, sums, embedding, biases, collectives are the real ones.
//
// With m(x) in {-1, 0, 1} the remainder of x by 3, the nearest one:
//   norm         out = m(s) w + b, of s = x + residual; d_x = m(d_out) + d_bypass,
//                d_w = sum d_out m(s), d_b = sum d_out
//   attention    out[t,h] = m(q[t,h] + sum over u <= t of (k[u] - v[u])); lse = 0
//                d_q = m(d_out + the same sum), d_v = -d_k, d_k[u] = sum over t >= u and the
//                group's heads of m(d_out): over rows and heads a sum, since ranks may have some of
//                them each
//   rope         x at odd positions changes its sign: the table has the sign of each row
//   activations  gelu: m(x), gradient m(x) d_out;
//                swiglu: m(g) m(u + 1), d_g = m(u + 1) m(d_out), d_u = m(g) d_out
//   router       exact_experts.h
//   loss         of a row with target y: sum += y + m(logit y); gradient m(logit) - [v == y]
//   AdamW        master -= m(g), m += g, v = g
// f32 only. Error(kInternal) where a value reaches 2^24, above which integers are not exact.
#pragma once

#include "kernels/ops/kernel_table.h"
#include "runtime/exec/engine.h"

namespace millrace::test {

const KernelTable& ExactKernels();

// Small integers by name and logical index, in {-1, 0, 1}; moments zero. Of every rank's weights.
void InitExactWeights(Engine& engine);

}  // namespace millrace::test
