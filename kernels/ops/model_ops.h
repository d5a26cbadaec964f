// Argument structs of the kernel ops that compute a model: forward, backward, loss.
//
// One struct per op, for several kinds of view V: plan::View while a step is planned, TensorView
// (an address) when it runs. `Visit(op, f)` calls f(view, access, name) for each operand, in a
// fixed order; it is the only statement of what an op reads and writes. An absent optional operand
// (false as bool) is visited too; visitors skip it. Each output that may add to what is there has
// an Update attribute of its own, which Visit yields with it (Updated): an op may overwrite one
// output and accumulate another.
//
// Letters  B batch, T sequence length, R = B*T rows, C model width, H heads, Hkv key/value heads, D
//          head dim, F hidden width of the MLP, V vocabulary, Vp padded vocabulary (rows [V, Vp) of
//          a table are zero for ever and get zero gradient).
// Dtypes   "any" is f32, bf16 or f16. Arithmetic is f32 whatever the storage; one rounding when a
//          result is stored.
// Aliasing  Views of one op do not overlap unless the op says so.
// Documents  An optional operand `documents` i32 [B,T], dense, says that a row of T is several
//          sequences end to end: documents[b,t] is the first position of that which t is in, t
//          itself or that of t - 1, and 0 at t = 0. Positions count from there, and nothing looks
//          beyond it. Absent: a row is one. Not where rows are split over ranks.
// Magnitude  An optional operand `magnitude` f32 [1]: of what it holds, which is not negative, and
//          the largest finite magnitude of a result as stored, the greater. Who quantizes that
//          result (fp8_ops.h) need not look for it once more.
// Scratch  Contents are undefined before and after; its size is WorkspaceBytes(op, backend)
//          (kernels/ops/cost.h).
#pragma once

#include <cstdint>

#include "kernels/ops/access.h"
#include "kernels/ops/context_rows.h"
#include "runtime/base/mesh.h"
#include "runtime/base/policies.h"

namespace millrace {

// Rows [row_begin, row_begin + R) of the B*T: out[r, :] = table[tokens[b,t], :] (+ positions[t, :])
// with row_begin + r = b*T + t; with documents, positions[t - documents[b,t], :].
// tokens i32 [B,T] (strided), table any [Vp,C], positions any [T,C] optional, out any [R,C].
// Token ids are checked against V when data is loaded, not here; where there is none, behind a
// window's end, -1 stands for token 0. `tokens` addresses parity 0;
// the kernel adds scalars->token_parity * parity_stride elements.
// With sequences split over n ranks (rows.split()): tokens are [2B,T/2n], the halves of this rank's
// rows of each sequence, and half h of them has the positions from its start on.
struct EmbedAttrs {
  int64_t parity_stride = 0;
  RankInt row_begin;
  ContextRows rows;
  bool operator==(const EmbedAttrs&) const = default;

  template <class Self, class F>
  static void VisitRankInts(Self& s, F&& f) {
    f(s.row_begin, "row_begin");
    ContextRows::VisitRankInts(s.rows, f);
  }
};
template <class V>
struct EmbedOp : EmbedAttrs {
  using Attrs = EmbedAttrs;
  static constexpr const char* kName = "embed";
  V tokens, documents, table, positions, out, scalars;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.tokens, Access::kRead, "tokens");
    f(s.documents, Access::kRead, "documents");
    f(s.table, Access::kRead, "table");
    f(s.positions, Access::kRead, "positions");
    f(s.scalars, Access::kRead, "scalars");
    f(s.out, Access::kWrite, "out");
  }
};

// Of rows [row_begin, row_begin + R) of the B*T, row_begin + r = b*T + t:
// d_table[v, :] (=|+=) sum over r with tokens[b,t] == v of d_out[r, :], in order of r;
// rows that no token names become zero (overwrite) or keep their value.
// d_positions[t, :] (=|+=) sum over r of this t, in order of b, of d_out[r, :]; with documents,
// over r of this t - documents[b,t], in order of r.
// d_table, d_positions any dtype; each sum is formed in f32 and reaches its destination in one
// rounding, whatever the update. With sequences split as EmbedOp's, d_positions has all T rows; to
// those of other ranks' positions nothing is added.
struct EmbedGradAttrs {
  int64_t parity_stride = 0;
  RankInt row_begin;
  ContextRows rows;
  Update table_update = Update::kOverwrite;
  Update positions_update = Update::kOverwrite;
  bool operator==(const EmbedGradAttrs&) const = default;

  template <class Self, class F>
  static void VisitRankInts(Self& s, F&& f) {
    f(s.row_begin, "row_begin");
    ContextRows::VisitRankInts(s.rows, f);
  }
};
template <class V>
struct EmbedGradOp : EmbedGradAttrs {
  using Attrs = EmbedGradAttrs;
  static constexpr const char* kName = "embed_grad";
  V tokens, documents, d_out, d_table, d_positions, scalars, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.tokens, Access::kRead, "tokens");
    f(s.documents, Access::kRead, "documents");
    f(s.d_out, Access::kRead, "d_out");
    f(s.scalars, Access::kRead, "scalars");
    f(s.d_table, Updated{s.table_update}, "d_table");
    f(s.d_positions, Updated{s.positions_update}, "d_positions");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

enum class NormKind { kLayer, kRms };

// s = x + residual, rounded to sum's dtype (s = x without residual, and then `sum` is absent);
// layer: out = (s - mean) * rstd * weight + bias, rstd = 1 / sqrt(var + eps), biased variance
//        (arXiv 1607.06450);
// rms:   out = s * rstd * weight, rstd = 1 / sqrt(mean(s^2) + eps) (arXiv 1910.07467).
// x, residual, sum, out any [R,C]; weight, bias any [C]; mean (layer only), rstd f32 [R].
// `sum` may be x or residual itself (in place). Bits do not depend on whether the addition is
// fused. magnitude: of out.
struct NormAttrs {
  NormKind kind = NormKind::kLayer;
  float eps = 1e-5f;
  bool operator==(const NormAttrs&) const = default;
};
template <class V>
struct NormOp : NormAttrs {
  using Attrs = NormAttrs;
  static constexpr const char* kName = "norm";
  V x, residual, weight, bias, sum, out, mean, rstd, magnitude;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.residual, Access::kRead, "residual");
    f(s.weight, Access::kRead, "weight");
    f(s.bias, Access::kRead, "bias");
    f(s.sum, Access::kWrite, "sum");
    f(s.out, Access::kWrite, "out");
    f(s.mean, Access::kWrite, "mean");
    f(s.rstd, Access::kWrite, "rstd");
    f(s.magnitude, Access::kAccumulate, "magnitude");
  }
};

// Gradient of NormOp with respect to its (summed) input x, with the gradient that bypasses the norm
// added, and what NormSumsOp makes those of weight and bias of:
// d_x = dnorm/dx(d_out) (+ d_bypass);
// partials[n,0,c] = sum over the rows of block n of d_out*xhat, partials[n,1,c] likewise of d_out.
// d_out, x, d_bypass, d_x any [R,C]; d_x may be d_bypass or d_out itself; partials f64 [N,S,C],
// as NormPartialsLayout (cost.h) says, S = 2 with a bias, else 1. Which rows are of a block is
// the backend's. magnitude: of d_x.
struct NormGradAttrs {
  NormKind kind = NormKind::kLayer;
  bool operator==(const NormGradAttrs&) const = default;
};
template <class V>
struct NormGradOp : NormGradAttrs {
  using Attrs = NormGradAttrs;
  static constexpr const char* kName = "norm_grad";
  V d_out, x, weight, mean, rstd, d_bypass, d_x, partials, magnitude;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.d_out, Access::kRead, "d_out");
    f(s.x, Access::kRead, "x");
    f(s.weight, Access::kRead, "weight");
    f(s.mean, Access::kRead, "mean");
    f(s.rstd, Access::kRead, "rstd");
    f(s.d_bypass, Access::kRead, "d_bypass");
    f(s.d_x, Access::kWrite, "d_x");
    f(s.partials, Access::kWrite, "partials");
    f(s.magnitude, Access::kAccumulate, "magnitude");
  }
};

// Gradients of a norm's weight and bias, which no other gradient waits for:
// d_weight[c] (=|+=) sum over n of partials[n,0,c], d_bias[c] (=|+=) sum over n of partials[n,1,c].
// partials as NormGradOp's; d_weight, d_bias any [C], d_bias where S is 2. Each sum is formed in
// f64, rounded to f32, and reaches its destination in one rounding.
struct NormSumsAttrs {
  Update weight_update = Update::kOverwrite;
  Update bias_update = Update::kOverwrite;
  bool operator==(const NormSumsAttrs&) const = default;
};
template <class V>
struct NormSumsOp : NormSumsAttrs {
  using Attrs = NormSumsAttrs;
  static constexpr const char* kName = "norm_sums";
  V partials, d_weight, d_bias;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.partials, Access::kRead, "partials");
    f(s.d_weight, Updated{s.weight_update}, "d_weight");
    f(s.d_bias, Updated{s.bias_update}, "d_bias");
  }
};

// RMSNorm of each query and key head of fused rows, with one weight for all query heads and one for
// all key heads (QK-norm, as Qwen3 has it):
// out[r,h,:] = x[r,h,:] * rstd[r,h] * (q_weight where h < H, else k_weight), h < H + Hkv,
// rstd = 1 / sqrt(mean over D of x[r,h,:]^2 + eps); value heads are x's, bit for bit.
// x, out any [R,(H+2Hkv)D] of one dtype; q_weight, k_weight any [D]; rstd f32 [R,H+Hkv], dense.
struct HeadNormAttrs {
  int64_t heads = 0, kv_heads = 0;
  float eps = 1e-5f;
  bool operator==(const HeadNormAttrs&) const = default;
};
template <class V>
struct HeadNormOp : HeadNormAttrs {
  using Attrs = HeadNormAttrs;
  static constexpr const char* kName = "head_norm";
  V x, q_weight, k_weight, out, rstd;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.q_weight, Access::kRead, "q_weight");
    f(s.k_weight, Access::kRead, "k_weight");
    f(s.out, Access::kWrite, "out");
    f(s.rstd, Access::kWrite, "rstd");
  }
};

// Gradient of HeadNormOp with respect to x and both weights:
// d_x = dnorm/dx(d_out) for query and key heads, d_out for value heads;
// d_q_weight[d] (=|+=) sum over rows and query heads of d_out*xhat, d_k_weight likewise of key
// heads.
// d_out, x, d_x any [R,(H+2Hkv)D], d_out and d_x of one dtype; d_x may be d_out itself;
// d_q_weight, d_k_weight any [D].
struct HeadNormGradAttrs {
  int64_t heads = 0, kv_heads = 0;
  Update q_update = Update::kOverwrite;
  Update k_update = Update::kOverwrite;
  bool operator==(const HeadNormGradAttrs&) const = default;
};
template <class V>
struct HeadNormGradOp : HeadNormGradAttrs {
  using Attrs = HeadNormGradAttrs;
  static constexpr const char* kName = "head_norm_grad";
  V d_out, x, q_weight, k_weight, rstd, d_x, d_q_weight, d_k_weight, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.d_out, Access::kRead, "d_out");
    f(s.x, Access::kRead, "x");
    f(s.q_weight, Access::kRead, "q_weight");
    f(s.k_weight, Access::kRead, "k_weight");
    f(s.rstd, Access::kRead, "rstd");
    f(s.d_x, Access::kWrite, "d_x");
    f(s.d_q_weight, Updated{s.q_update}, "d_q_weight");
    f(s.d_k_weight, Updated{s.k_update}, "d_k_weight");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

enum class Epilogue { kNone, kBias, kBiasGelu, kGelu, kGeluGrad };

// out[m,n] (=|+=) epilogue(sum over k of a[m,k] * b[k,n]).
// a [M,K], b [K,N], out [M,N], any dtypes; one stride of each 2-D view is 1, so a transpose is a
// view. Instead a and b may both be FP8, with scales as fp8_ops.h says; then `scaling` is not
// kNone. kBias: + bias[n]. kGelu, kBiasGelu: tanh-GELU of that, and `pre` [M,N] receives the value
// before it. kGeluGrad: times the derivative of tanh-GELU at `pre`, which is read: the gradient
// with respect to what went into a GELU. Nothing overlaps `pre`. magnitude: of out, behind a GELU
// or its derivative.
// Rounding  kOnce: the f32 product is complete before it is rounded to out's dtype or added to what
//           is there, in one rounding, and it has the bits that a dense f32 `out` would receive. So
//           overwriting a temporary and adding it later (ConcatOp) gives the bits of writing or
//           adding at once. An op that accumulates always is kOnce; none that is takes an epilogue.
//           kBackend: the product's bits may depend on out's dtype and strides, and a backend may
//           round it to the dtype of the stored value (pre's or else out's) before it adds the
//           bias, or to out's before it multiplies by the derivative. Of these the CPU does the
//           last, always.
// Like      like_rows > 0: on the CPU row r has the bits of row places[r] % like_rows of a product
//           of so many rows and the same other operands (kernels/cpu/matmul/alike.h): rows go by
//           several products, one after the other. places i32 [M], dense, not negative; a is
//           row-major then, and nothing is accumulated. CUDA multiplies as ever.
//           like_columns > 0, beside like_rows: and column c those of column like_first + c of a
//           product of so many columns; columns behind those are zero. b is a transpose then, and
//           there are neither bias nor scales.
// In order  in_order: on CUDA a row has the same bits wherever it lies and however many rows there
//           are, as no order of sums follows from their number (kernels/cuda/matmul/in_order.h);
//           the CPU has like_rows. a, out and pre are rows of neighbours, b a transpose, all bf16,
//           bias too, K, N and strides multiples of 8; kNone, kBias, kGelu or kBiasGelu, kBackend.
// Constant  constant, of one row in order: no op of a step writes b, and a backend may read it
//           before the op ahead of this one has ended. The planner says so (schedule/constants.h).
// Scaling   kProduct: one scale of each operand, any f32; the f32 sum is over payloads and is then
//           multiplied by both scales, in double with one rounding to f32. kOperands: scales are
//           powers of two, so that payload * scale is exact in f32; sums are over these.
enum class Rounding { kBackend, kOnce };
enum class Scaling { kNone, kProduct, kOperands };
struct MatmulAttrs {
  Epilogue epilogue = Epilogue::kNone;
  Update update = Update::kOverwrite;
  Rounding rounding = Rounding::kBackend;
  // StagedBytes of cost.h, by the planner: counted as concatenated. No kernel reads it.
  int64_t staged_bytes = 0;
  int64_t like_rows = 0, like_columns = 0;
  RankInt like_first;
  bool in_order = false, constant = false;
  Scaling scaling = Scaling::kNone;
  bool rounds_once() const { return rounding == Rounding::kOnce || update == Update::kAccumulate; }
  bool operator==(const MatmulAttrs&) const = default;
};
template <class V>
struct MatmulOp : MatmulAttrs {
  using Attrs = MatmulAttrs;
  static constexpr const char* kName = "matmul";
  V a, b, a_scales, b_scales, bias, places, out, pre, magnitude, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.a, Access::kRead, "a");
    f(s.b, Access::kRead, "b");
    f(s.a_scales, Access::kRead, "a_scales");
    f(s.b_scales, Access::kRead, "b_scales");
    f(s.bias, Access::kRead, "bias");
    f(s.places, Access::kRead, "places");
    f(s.out, Updated{s.update}, "out");
    f(s.pre, s.epilogue == Epilogue::kGeluGrad ? Access::kRead : Access::kWrite, "pre");
    f(s.magnitude, Access::kAccumulate, "magnitude");
    f(s.scratch, Access::kScratch, "scratch");
  }
  template <class Self, class F>
  static void VisitRankInts(Self& s, F&& f) {
    f(s.like_first, "like_first");
  }
};

// out[i,m,n] = alpha * (sum over k of a[i,m,k] * b[i,k,n]) + beta * c[i,m,n]: products of equal
// shapes at once, each of the matrices as MatmulOp's, at any distance from the next.
// a [I,M,K], b [I,K,N], of one dtype, f32 or bf16; out [I,M,N] of that or f32, with neighbours in a
// row; c as out, absent: alpha is 1 and beta 0. All in f32, with one rounding. On the CPU every
// product has the bits of one that MatmulOp stores, as f32 before `c` is added; on CUDA its bits
// may depend on how many there are.
struct BatchedMatmulAttrs {
  double alpha = 1, beta = 0;
  bool operator==(const BatchedMatmulAttrs&) const = default;
};
template <class V>
struct BatchedMatmulOp : BatchedMatmulAttrs {
  using Attrs = BatchedMatmulAttrs;
  static constexpr const char* kName = "batched_matmul";
  V a, b, c, out, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.a, Access::kRead, "a");
    f(s.b, Access::kRead, "b");
    f(s.c, Access::kRead, "c");
    f(s.out, Access::kWrite, "out");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

// out[n] (=|+=) sum over m of x[m,n]: the gradient of a bias.
// x any [M,N] (row-strided), out any [N]. magnitude: of x.
struct ColumnSumAttrs {
  Update update = Update::kOverwrite;
  bool operator==(const ColumnSumAttrs&) const = default;
};
template <class V>
struct ColumnSumOp : ColumnSumAttrs {
  using Attrs = ColumnSumAttrs;
  static constexpr const char* kName = "column_sum";
  V x, out, magnitude, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.out, Updated{s.update}, "out");
    f(s.magnitude, Access::kAccumulate, "magnitude");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

// out = a + b, element by element, rounded once.
// Any dtype, equal shapes, contiguous; out may be a or b.
template <class V>
struct AddOp : NoAttrs {
  using Attrs = NoAttrs;
  static constexpr const char* kName = "add";
  V a, b, out;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.a, Access::kRead, "a");
    f(s.b, Access::kRead, "b");
    f(s.out, Access::kWrite, "out");
  }
};

// out[r,c] = x[r,c] + bias[c], rounded once: a bias behind a sum over ranks.
// Any dtype, x and out [R,C], contiguous; out may be x.
template <class V>
struct AddBiasOp : NoAttrs {
  using Attrs = NoAttrs;
  static constexpr const char* kName = "add_bias";
  V x, bias, out;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.bias, Access::kRead, "bias");
    f(s.out, Access::kWrite, "out");
  }
};

// out[r,c] = x[r,c], bit for bit: columns of a fused row on their way to a communicator, or back;
// weights on their way to another process. One dtype, x and out [R,C], strided in dim 0; out also
// turned, with columns of neighbours (strides 1 and >= R). No overlap.
template <class V>
struct CopyRowsOp : NoAttrs {
  using Attrs = NoAttrs;
  static constexpr const char* kName = "copy_rows";
  V x, out;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.out, Access::kWrite, "out");
  }
};

// out[r, i P + c] = x[i,r,c], bit for bit, as far as out has columns: the columns that each of n
// ranks has formed, gathered. One dtype, x [n,R,P] and out [R,C], dense; C <= n P.
template <class V>
struct JoinColumnsOp : NoAttrs {
  using Attrs = NoAttrs;
  static constexpr const char* kName = "join_columns";
  V x, out;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.out, Access::kWrite, "out");
  }
};

// gelu (tanh form, HF "gelu_new"): out[r,f] = gelu(x[r,f]), x [R,F].
// swiglu: out[r,f] = silu(x[r,f]) * x[r,F+f], x [R,2F] (gate columns, then up columns;
//         arXiv 2002.05202).
// relu2: out[r,f] = max(x[r,f], 0)^2, x [R,F] (arXiv 2109.08668).
// out any [R,F]. magnitude: of out.
struct ActivationAttrs {
  ActivationKind kind = ActivationKind::kGelu;
  bool operator==(const ActivationAttrs&) const = default;
};
template <class V>
struct ActivationOp : ActivationAttrs {
  using Attrs = ActivationAttrs;
  static constexpr const char* kName = "activation";
  V x, out, magnitude;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.out, Access::kWrite, "out");
    f(s.magnitude, Access::kAccumulate, "magnitude");
  }
};

// d_x from d_out and the forward input x.
// d_x has x's shape and may be x itself; not gated, it may be d_out itself. magnitude: of d_x.
struct ActivationGradAttrs {
  ActivationKind kind = ActivationKind::kGelu;
  bool operator==(const ActivationGradAttrs&) const = default;
};
template <class V>
struct ActivationGradOp : ActivationGradAttrs {
  using Attrs = ActivationGradAttrs;
  static constexpr const char* kName = "activation_grad";
  V x, d_out, d_x, magnitude;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.d_out, Access::kRead, "d_out");
    f(s.d_x, Access::kWrite, "d_x");
    f(s.magnitude, Access::kAccumulate, "magnitude");
  }
};

// out[b,t] = x[b,t] of the half of x that scalars->token_parity names (parity as EmbedOp): what
// several ops of a microbatch read of what the host gives.
// x i32 [B,T] strided, out i32 [B,T], dense.
struct TakeInputAttrs {
  int64_t parity_stride = 0;
  bool operator==(const TakeInputAttrs&) const = default;
};
template <class V>
struct TakeInputOp : TakeInputAttrs {
  using Attrs = TakeInputAttrs;
  static constexpr const char* kName = "take_input";
  V x, out, scalars;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.scalars, Access::kRead, "scalars");
    f(s.out, Access::kWrite, "out");
  }
};

// out[0, :] = x[scalars->generate_row, :]: the row whose logits generation wants.
// x any [R,C], out same dtype [1,C].
template <class V>
struct SelectRowOp : NoAttrs {
  using Attrs = NoAttrs;
  static constexpr const char* kName = "select_row";
  V x, out, scalars;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.scalars, Access::kRead, "scalars");
    f(s.out, Access::kWrite, "out");
  }
};

}  // namespace millrace
