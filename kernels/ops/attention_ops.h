// Argument structs of rotary embeddings and attention; letters, dtypes and aliasing as in
// kernels/ops/model_ops.h.
#pragma once

#include <cstdint>

#include "kernels/ops/access.h"
#include "kernels/ops/context_rows.h"

namespace millrace {

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
// x any [B,T,H,D] strided (a slice of a fused QKV row), table f32 [T, D/2, 2]. With documents the
// position of t is t - documents[b,t].
struct RopeAttrs {
  RopeDirection direction = RopeDirection::kForward;
  bool operator==(const RopeAttrs&) const = default;
};
template <class V>
struct RopeOp : RopeAttrs {
  using Attrs = RopeAttrs;
  static constexpr const char* kName = "rope";
  V x, table, documents;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.table, Access::kRead, "table");
    f(s.documents, Access::kRead, "documents");
    f(s.x, Access::kAccumulate, "x");
  }
};

// Causal attention. p[b,h,t,u] = softmax over u <= t of scale * q[b,t,h,:].k[b,u,h/(H/Hkv),:];
// with a window, over t - window < u <= t; with documents, over documents[b,t] <= u of these;
// out[b,t,h,:] = sum_u p * v[b,u,h/(H/Hkv),:].
// lse[b,h,t] = log sum exp of the scaled scores, f32, optional.
// q, out any [B,T,H,D]; k, v any [B,T,Hkv,D]; all strided in dims 0..2.
// With sequences split over n ranks (rows.split()): q, out [B,T/n,H,D] and lse [B,H,T/n] are this
// rank's rows; k, v [n*B,T/n,Hkv,D] are all ranks', gathered, and are read where they lie
// (PlaceOf). On the CPU each row has the bits that it has in whole sequences, and a document's rows
// those that they have where it stands alone.
// On CUDA, bf16 operands may be multiplied as bf16: attention_choice.h.
// in_order: on CUDA by a kernel that takes a query's keys in an order that another has, too: a row
// has the bits that CachedAttentionOp in order gives it (cache_ops.h). bf16 heads of 64 or 128,
// neither window nor documents, whole sequences.
struct AttentionAttrs {
  float scale = 1;
  int64_t window = 0;  // a query sees itself and window - 1 keys before it; 0: all before it
  ContextRows rows;
  bool in_order = false;
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
  V q, k, v, documents, out, lse, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.documents, Access::kRead, "documents");
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
  V q, k, v, documents, out, lse, d_out, d_q, d_k, d_v, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.documents, Access::kRead, "documents");
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

}  // namespace millrace
