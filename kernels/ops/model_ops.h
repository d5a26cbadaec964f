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
// Dtypes   "any" is f32 or bf16. Arithmetic is f32 whatever the storage; one rounding when a result
//          is stored.
// Aliasing  Views of one op do not overlap unless the op says so.
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
// with row_begin + r = b*T + t.
// tokens i32 [B,T] (strided), table any [Vp,C], positions any [T,C] optional, out any [R,C].
// Token ids are checked against V when data is loaded, not here. `tokens` addresses parity 0;
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
  V tokens, table, positions, out, scalars;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.tokens, Access::kRead, "tokens");
    f(s.table, Access::kRead, "table");
    f(s.positions, Access::kRead, "positions");
    f(s.scalars, Access::kRead, "scalars");
    f(s.out, Access::kWrite, "out");
  }
};

// Of rows [row_begin, row_begin + R) of the B*T, row_begin + r = b*T + t:
// d_table[v, :] (=|+=) sum over r with tokens[b,t] == v of d_out[r, :], in order of r;
// rows that no token names become zero (overwrite) or keep their value.
// d_positions[t, :] (=|+=) sum over r of this t, in order of b, of d_out[r, :].
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
  V tokens, d_out, d_table, d_positions, scalars, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.tokens, Access::kRead, "tokens");
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
// fused.
struct NormAttrs {
  NormKind kind = NormKind::kLayer;
  float eps = 1e-5f;
  bool operator==(const NormAttrs&) const = default;
};
template <class V>
struct NormOp : NormAttrs {
  using Attrs = NormAttrs;
  static constexpr const char* kName = "norm";
  V x, residual, weight, bias, sum, out, mean, rstd;
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
  }
};

// Gradient of NormOp with respect to its (summed) input x, weight and bias, with the gradient that
// bypasses the norm added:
// d_x = dnorm/dx(d_out) (+ d_bypass);
// d_weight[c] (=|+=) sum over rows of d_out*xhat, d_bias[c] (=|+=) sum over rows of d_out.
// d_out, x, d_bypass, d_x any [R,C]; d_x may be d_bypass or d_out itself; d_weight, d_bias any
// dtype.
struct NormGradAttrs {
  NormKind kind = NormKind::kLayer;
  Update weight_update = Update::kOverwrite;
  Update bias_update = Update::kOverwrite;
  bool operator==(const NormGradAttrs&) const = default;
};
template <class V>
struct NormGradOp : NormGradAttrs {
  using Attrs = NormGradAttrs;
  static constexpr const char* kName = "norm_grad";
  V d_out, x, weight, mean, rstd, d_bypass, d_x, d_weight, d_bias, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.d_out, Access::kRead, "d_out");
    f(s.x, Access::kRead, "x");
    f(s.weight, Access::kRead, "weight");
    f(s.mean, Access::kRead, "mean");
    f(s.rstd, Access::kRead, "rstd");
    f(s.d_bypass, Access::kRead, "d_bypass");
    f(s.d_x, Access::kWrite, "d_x");
    f(s.d_weight, Updated{s.weight_update}, "d_weight");
    f(s.d_bias, Updated{s.bias_update}, "d_bias");
    f(s.scratch, Access::kScratch, "scratch");
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
// view. kBias: + bias[n]. kGelu, kBiasGelu: tanh-GELU of that, and `pre` [M,N] receives the value
// before it. kGeluGrad: times the derivative of tanh-GELU at `pre`, which is read: the gradient
// with respect to what went into a GELU. Nothing overlaps `pre`.
// Rounding  kOnce: the f32 product is complete before it is rounded to out's dtype or added to what
//           is there, in one rounding, and it has the bits that a dense f32 `out` would receive. So
//           overwriting a temporary and adding it later (ConcatOp) gives the bits of writing or
//           adding at once. An op that accumulates always is kOnce; none that is takes an epilogue.
//           kBackend: the product's bits may depend on out's dtype and strides, and a backend may
//           round it to the dtype of the stored value (pre's or else out's) before it adds the
//           bias, or to out's before it multiplies by the derivative. Of these the CPU does the
//           last, always.
enum class Rounding { kBackend, kOnce };
struct MatmulAttrs {
  Epilogue epilogue = Epilogue::kNone;
  Update update = Update::kOverwrite;
  Rounding rounding = Rounding::kBackend;
  // StagedBytes of cost.h, by the planner: counted as concatenated. No kernel reads it.
  int64_t staged_bytes = 0;
  bool rounds_once() const { return rounding == Rounding::kOnce || update == Update::kAccumulate; }
  bool operator==(const MatmulAttrs&) const = default;
};
template <class V>
struct MatmulOp : MatmulAttrs {
  using Attrs = MatmulAttrs;
  static constexpr const char* kName = "matmul";
  V a, b, bias, out, pre, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.a, Access::kRead, "a");
    f(s.b, Access::kRead, "b");
    f(s.bias, Access::kRead, "bias");
    f(s.out, Updated{s.update}, "out");
    f(s.pre, s.epilogue == Epilogue::kGeluGrad ? Access::kRead : Access::kWrite, "pre");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

// out[n] (=|+=) sum over m of x[m,n]: the gradient of a bias.
// x any [M,N] (row-strided), out any [N].
struct ColumnSumAttrs {
  Update update = Update::kOverwrite;
  bool operator==(const ColumnSumAttrs&) const = default;
};
template <class V>
struct ColumnSumOp : ColumnSumAttrs {
  using Attrs = ColumnSumAttrs;
  static constexpr const char* kName = "column_sum";
  V x, out, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.out, Updated{s.update}, "out");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

// Llama 3 frequency scaling (HF rope_type "llama3"); factor == 1 means none.
struct RopeScaling {
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;
  bool operator==(const RopeScaling&) const = default;
};

// table[t, i, 0..1] = cos, sin of t * inv_freq(i), inv_freq(i) = theta^(-2i/D), scaled.
// table f32 [T, D/2, 2]; angles in double. With sequences split over n ranks (rows.split()) the
// table has the T/n rows of this rank's positions, in its order.
struct RopeTableAttrs {
  double theta = 10000;
  RopeScaling scaling;
  ContextRows rows;
  bool operator==(const RopeTableAttrs&) const = default;

  template <class Self, class F>
  static void VisitRankInts(Self& s, F&& f) {
    ContextRows::VisitRankInts(s.rows, f);
  }
};
template <class V>
struct RopeTableOp : RopeTableAttrs {
  using Attrs = RopeTableAttrs;
  static constexpr const char* kName = "rope_table";
  V table;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.table, Access::kWrite, "table");
  }
};

enum class RopeDirection { kForward, kInverse };

// Rotates pairs (x[i], x[i + D/2]) of each head by the table's angle for its position, in place
// (arXiv 2104.09864, half-split layout as in HF Llama). kInverse rotates back: the gradient.
// x any [B,T,H,D] strided (a slice of a fused QKV row), table f32 [T, D/2, 2].
struct RopeAttrs {
  RopeDirection direction = RopeDirection::kForward;
  bool operator==(const RopeAttrs&) const = default;
};
template <class V>
struct RopeOp : RopeAttrs {
  using Attrs = RopeAttrs;
  static constexpr const char* kName = "rope";
  V x, table;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.table, Access::kRead, "table");
    f(s.x, Access::kAccumulate, "x");
  }
};

// Causal attention. p[b,h,t,u] = softmax over u <= t of scale * q[b,t,h,:].k[b,u,h/(H/Hkv),:];
// with a window, over t - window < u <= t;
// out[b,t,h,:] = sum_u p * v[b,u,h/(H/Hkv),:].
// lse[b,h,t] = log sum exp of the scaled scores, f32, optional.
// q, out any [B,T,H,D]; k, v any [B,T,Hkv,D]; all strided in dims 0..2.
// With sequences split over n ranks (rows.split()): q, out [B,T/n,H,D] and lse [B,H,T/n] are this
// rank's rows; k, v [n*B,T/n,Hkv,D] are all ranks', gathered, and are read where they lie
// (PlaceOf). On the CPU each row has the bits that it has in whole sequences.
// On CUDA, bf16 operands may be multiplied as bf16: attention_choice.h.
struct AttentionAttrs {
  float scale = 1;
  int64_t window = 0;  // a query sees itself and window - 1 keys before it; 0: all before it
  ContextRows rows;
  bool operator==(const AttentionAttrs&) const = default;

  template <class Self, class F>
  static void VisitRankInts(Self& s, F&& f) {
    ContextRows::VisitRankInts(s.rows, f);
  }
};
template <class V>
struct AttentionOp : AttentionAttrs {
  using Attrs = AttentionAttrs;
  static constexpr const char* kName = "attention";
  V q, k, v, out, lse, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.q, Access::kRead, "q");
    f(s.k, Access::kRead, "k");
    f(s.v, Access::kRead, "v");
    f(s.out, Access::kWrite, "out");
    f(s.lse, Access::kWrite, "lse");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

// Gradient of AttentionOp; p is recomputed from lse. Shapes as forward: d_q [B,T,H,D],
// d_k, d_v [B,T,Hkv,D]. With sequences split: d_q [B,T/n,H,D], and d_k, d_v [n*B,T/n,Hkv,D] are
// what this rank's queries add to the gradient of every rank's keys and values, zero where none of
// them sees a key: in the gathered order, to be summed over the group.
// deterministic: the same bits every time; else blocks of a GPU may add to d_q in the order they
// finish.
struct AttentionGradAttrs {
  float scale = 1;
  int64_t window = 0;
  bool deterministic = true;
  ContextRows rows;
  bool operator==(const AttentionGradAttrs&) const = default;

  template <class Self, class F>
  static void VisitRankInts(Self& s, F&& f) {
    ContextRows::VisitRankInts(s.rows, f);
  }
};
template <class V>
struct AttentionGradOp : AttentionGradAttrs {
  using Attrs = AttentionGradAttrs;
  static constexpr const char* kName = "attention_grad";
  V q, k, v, out, lse, d_out, d_q, d_k, d_v, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.q, Access::kRead, "q");
    f(s.k, Access::kRead, "k");
    f(s.v, Access::kRead, "v");
    f(s.out, Access::kRead, "out");
    f(s.lse, Access::kRead, "lse");
    f(s.d_out, Access::kRead, "d_out");
    f(s.d_q, Access::kWrite, "d_q");
    f(s.d_k, Access::kWrite, "d_k");
    f(s.d_v, Access::kWrite, "d_v");
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

// out[r,c] = x[r,c], bit for bit: columns of a fused row on their way to a communicator, or back.
// One dtype, x and out [R,C], strided in dim 0.
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

// gelu (tanh form, HF "gelu_new"): out[r,f] = gelu(x[r,f]), x [R,F].
// swiglu: out[r,f] = silu(x[r,f]) * x[r,F+f], x [R,2F] (gate columns, then up columns;
//         arXiv 2002.05202).
// relu2: out[r,f] = max(x[r,f], 0)^2, x [R,F] (arXiv 2109.08668).
// out any [R,F].
struct ActivationAttrs {
  ActivationKind kind = ActivationKind::kGelu;
  bool operator==(const ActivationAttrs&) const = default;
};
template <class V>
struct ActivationOp : ActivationAttrs {
  using Attrs = ActivationAttrs;
  static constexpr const char* kName = "activation";
  V x, out;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.out, Access::kWrite, "out");
  }
};

// d_x from d_out and the forward input x.
// d_x has x's shape and may be x itself; not gated, it may be d_out itself.
struct ActivationGradAttrs {
  ActivationKind kind = ActivationKind::kGelu;
  bool operator==(const ActivationGradAttrs&) const = default;
};
template <class V>
struct ActivationGradOp : ActivationGradAttrs {
  using Attrs = ActivationGradAttrs;
  static constexpr const char* kName = "activation_grad";
  V x, d_out, d_x;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.d_out, Access::kRead, "d_out");
    f(s.d_x, Access::kWrite, "d_x");
  }
};

enum class LossOutput { kLossOnly, kLossAndGradient };

// Cross entropy of a chunk of rows. For row r of the chunk (row_begin + r = b*T + t of the
// microbatch), target y = targets[b,t]:
// loss_sum += logsumexp(logits[r, :V]) - logits[r, y]; with gradient, in place,
// logits[r, v] = (softmax(logits[r, :V])[v] - [v == y]) * loss_weight * scalars->inv_valid_tokens
//                for v < V, 0 for V <= v < Vp.
// A target < 0 is not counted and its gradient row is 0.
// logits any [rows,Vp] accumulate (loss only: read); targets i32 [B,T] strided, parity as EmbedOp;
// loss_sum f64 [1] (=|+=), summed in a fixed order.
// scalars->inject_loss_nan != 0 makes loss_sum NaN (fault injection).
struct CrossEntropyAttrs {
  RankInt row_begin;
  int64_t vocab = 0;
  int64_t parity_stride = 0;
  double loss_weight = 1;  // of this loss in the step's; loss_sum is not multiplied by it
  LossOutput output = LossOutput::kLossAndGradient;
  Update loss_update = Update::kOverwrite;
  bool operator==(const CrossEntropyAttrs&) const = default;

  template <class Self, class F>
  static void VisitRankInts(Self& s, F&& f) {
    f(s.row_begin, "row_begin");
  }
};
template <class V>
struct CrossEntropyOp : CrossEntropyAttrs {
  using Attrs = CrossEntropyAttrs;
  static constexpr const char* kName = "cross_entropy";
  V logits, targets, loss_sum, scalars, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.targets, Access::kRead, "targets");
    f(s.scalars, Access::kRead, "scalars");
    f(s.logits, s.output == LossOutput::kLossOnly ? Access::kRead : Access::kAccumulate, "logits");
    f(s.loss_sum, Updated{s.loss_update}, "loss_sum");
    f(s.scratch, Access::kScratch, "scratch");
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
