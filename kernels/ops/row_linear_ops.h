// Argument struct of the op that takes one row through a linear layer. Conventions as in
// model_ops.h.
//
// A step that decodes one sequence waits more often than it computes: each op waits for the one
// before it, then for memory. This op is several of others, and says what it may read early.
#pragma once

#include "kernels/ops/access.h"
#include "kernels/ops/model_ops.h"

namespace millrace {

enum class RowNorm { kNone, kLayer, kRms };
enum class RowFinish { kNone, kGelu, kSwiglu, kRotate };

// s = x + residual, which goes to `sum` (s = x without residual, and then `sum` is absent);
// y = NormOp of s, or s; p = y weight^T + bias; and with `finish`
//   kNone    out = p
//   kGelu    out = tanh-GELU of p
//   kSwiglu  out = silu(p[:, :N/2]) * p[:, N/2:]
//   kRotate  out = p, whose first `turned` heads are rotated as RopeRowsOp rotates them
// x, residual, sum [1,K], norm_weight, norm_bias [K], weight [N,K], bias [N] of one dtype, f32 or
// bf16, to which s, y and p are rounded as if each were stored; out [1,N], or [1,N/2] with kSwiglu,
// of that dtype, or f32 with kNone. All dense. kRotate: at i32 [1], table f32 [T,D/2,2], N a
// multiple of D. `sum` is neither x nor residual.
// Constant  No op of a step writes norm_weight, norm_bias, weight or bias: a backend may read them
//           before the op ahead of this one has ended. The planner says so (schedule/constants.h).
// In order  in_order: on CUDA with the bits of what it joins, a NormOp and a MatmulOp `in_order`:
//           those that a row has among many. With a norm, K at most 4096, kNone or kGelu, N a
//           multiple of 8. CPUs take it as any other.
// CUDA      takes bf16, K a multiple of 8 and at most 16384, 8192 with a norm; operands begin at
//           multiples of 16 bytes.
struct RowLinearAttrs {
  RowNorm norm = RowNorm::kNone;
  RowFinish finish = RowFinish::kNone;
  float eps = 1e-5f;
  int64_t turned = 0;
  bool constant = false;
  bool in_order = false;
  bool operator==(const RowLinearAttrs&) const = default;
};
template <class V>
struct RowLinearOp : RowLinearAttrs {
  using Attrs = RowLinearAttrs;
  static constexpr const char* kName = "row_linear";
  V x, residual, norm_weight, norm_bias, weight, bias, at, table, sum, out;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.residual, Access::kRead, "residual");
    VisitConstants(s, f);
    f(s.at, Access::kRead, "at");
    f(s.table, Access::kRead, "table");
    f(s.sum, Access::kWrite, "sum");
    f(s.out, Access::kWrite, "out");
  }
  // What `constant` is about.
  template <class Self, class F>
  static void VisitConstants(Self& s, F&& f) {
    f(s.norm_weight, Access::kRead, "norm_weight");
    f(s.norm_bias, Access::kRead, "norm_bias");
    f(s.weight, Access::kRead, "weight");
    f(s.bias, Access::kRead, "bias");
  }
};

// On CUDA.
inline constexpr int64_t kMostRowDepth = 16384, kMostRowNorm = 8192, kMostRowNormInOrder = 4096;

}  // namespace millrace
