// Argument structs of the kernel ops of a mixture of experts. Conventions as in model_ops.h.
//
// Letters  R rows (tokens) of this rank, E experts, K experts of a token, S slots: rows in the
//          order of the experts that work on them, C model width, F hidden width of an expert.
// Slots    Expert e has slots [offsets[e], offsets[e+1]), offsets i32 [E+1] on the device: no count
//          reaches the host, and shapes hold S, the most there can be. Slots from offsets[E] on are
//          not live: they are neither read nor written. VisitSlots(op, f) calls f(view) for the
//          operands whose rows are slots. `expected`, an attribute: how many are live on average,
//          for estimates alone (cost.h); 0: all.
// Order    Within an expert slots follow (token, k). Every sum has an order of its own; there are
//          no atomics. So bits depend on the operands alone.
// Limits   E <= kMaxExperts, K <= kMaxTopK (router_ops.h).
#pragma once

#include <cstdint>

#include "kernels/ops/access.h"
#include "runtime/base/policies.h"

namespace millrace {

// Sorts the R*K pairs (r,k) by ids[r,k], those of one expert by r*K + k:
// offsets[e] = number of pairs with an id below e; slots[r,k] = the pair's place in that order, and
// pairs[slots[r,k]] = r*K + k.
// ids i32 [R,K] in [0,E); offsets i32 [E+1], slots i32 [R,K], pairs i32 [R*K]; dense.
template <class V>
struct ExpertSlotsOp : NoAttrs {
  using Attrs = NoAttrs;
  static constexpr const char* kName = "expert_slots";
  V ids, offsets, slots, pairs, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.ids, Access::kRead, "ids");
    f(s.offsets, Access::kWrite, "offsets");
    f(s.slots, Access::kWrite, "slots");
    f(s.pairs, Access::kWrite, "pairs");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

// Of live slots s with (r,k) = pairs[s]: out[s,:] = x[r,:], slot_weights[s] = weights[r,k].
// x any [R,C], out any [S,C]; weights f32 [R,K] and slot_weights f32 [S] both or neither; pairs i32
// [S], offsets i32 [E+1]. Without offsets all slots are live, and those with a pair of -1 are zeros
// (expert_exchange_ops.h).
struct DispatchAttrs {
  int64_t top_k = 1;  // K
  int64_t expected = 0;
  bool operator==(const DispatchAttrs&) const = default;
};
template <class V>
struct DispatchOp : DispatchAttrs {
  using Attrs = DispatchAttrs;
  static constexpr const char* kName = "dispatch";
  V x, weights, pairs, offsets, out, slot_weights;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.weights, Access::kRead, "weights");
    f(s.pairs, Access::kRead, "pairs");
    f(s.offsets, Access::kRead, "offsets");
    f(s.out, Access::kWrite, "out");
    f(s.slot_weights, Access::kWrite, "slot_weights");
  }
  template <class Self, class F>
  static void VisitSlots(Self& s, F&& f) {
    f(s.pairs);
    f(s.out);
    f(s.slot_weights);
  }
};

// The transpose of DispatchOp: out[r,:] = sum over k, in its order, of y[slots[r,k],:];
// weights[r,k] = slot_weights[slots[r,k]].
// y any [S,C], slots i32 [R,K], out any [R,C]; slot_weights f32 [S] and weights f32 [R,K] both or
// neither.
template <class V>
struct CombineOp : NoAttrs {
  using Attrs = NoAttrs;
  static constexpr const char* kName = "combine";
  V y, slot_weights, slots, out, weights;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.y, Access::kRead, "y");
    f(s.slot_weights, Access::kRead, "slot_weights");
    f(s.slots, Access::kRead, "slots");
    f(s.out, Access::kWrite, "out");
    f(s.weights, Access::kWrite, "weights");
  }
};

// Of the slots s of expert e: out[s,n] = sum over k of a[s,k] * b[e,k,n], rounded once.
// a [S,K], b [E,K,N], out [S,N], any dtypes; the last or the last but one stride of b is 1, so that
// a transpose is a view; a and out dense rows. offsets i32 [E+1].
struct GroupedMatmulAttrs {
  int64_t expected = 0;
  bool operator==(const GroupedMatmulAttrs&) const = default;
};
template <class V>
struct GroupedMatmulOp : GroupedMatmulAttrs {
  using Attrs = GroupedMatmulAttrs;
  static constexpr const char* kName = "grouped_matmul";
  V a, b, offsets, out, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.a, Access::kRead, "a");
    f(s.b, Access::kRead, "b");
    f(s.offsets, Access::kRead, "offsets");
    f(s.out, Access::kWrite, "out");
    f(s.scratch, Access::kScratch, "scratch");
  }
  template <class Self, class F>
  static void VisitSlots(Self& s, F&& f) {
    f(s.a);
    f(s.out);
  }
};

// out[e,n,k] (=|+=) sum over the slots s of expert e of d_out[s,n] * a[s,k]: the gradient of
// weights [E,N,K]. The f32 sum is complete before it is rounded or added, in one rounding, as in
// MatmulOp's Rounding::kOnce. An expert without slots has a gradient of zeros.
// d_out [S,N], a [S,K], out [E,N,K], any dtypes, dense. offsets i32 [E+1].
struct GroupedWeightGradAttrs {
  Update update = Update::kOverwrite;
  int64_t expected = 0;
  bool operator==(const GroupedWeightGradAttrs&) const = default;
};
template <class V>
struct GroupedWeightGradOp : GroupedWeightGradAttrs {
  using Attrs = GroupedWeightGradAttrs;
  static constexpr const char* kName = "grouped_weight_grad";
  V d_out, a, offsets, out, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.d_out, Access::kRead, "d_out");
    f(s.a, Access::kRead, "a");
    f(s.offsets, Access::kRead, "offsets");
    f(s.out, Updated{s.update}, "out");
    f(s.scratch, Access::kScratch, "scratch");
  }
  template <class Self, class F>
  static void VisitSlots(Self& s, F&& f) {
    f(s.d_out);
    f(s.a);
  }
};

// Of live slots: out[s,f] = weights[s] * act(x)[s,f], ActivationOp's act, rounded once. The weight
// of a slot belongs to what its expert gives for it; that is linear in this product, which needs
// only what the activation's own gradient needs: the expert's output is not kept.
// x any [S,F] (swiglu [S,2F]), weights f32 [S], out any [S,F], dense. offsets i32 [E+1].
struct ExpertActivationAttrs {
  ActivationKind kind = ActivationKind::kSwiglu;
  int64_t expected = 0;
  bool operator==(const ExpertActivationAttrs&) const = default;
};
template <class V>
struct ExpertActivationOp : ExpertActivationAttrs {
  using Attrs = ExpertActivationAttrs;
  static constexpr const char* kName = "expert_activation";
  V x, weights, offsets, out;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.weights, Access::kRead, "weights");
    f(s.offsets, Access::kRead, "offsets");
    f(s.out, Access::kWrite, "out");
  }
  template <class Self, class F>
  static void VisitSlots(Self& s, F&& f) {
    f(s.x);
    f(s.weights);
    f(s.out);
  }
};

// d_x[s,:] = weights[s] * dact/dx(x)[s,:] * d_out[s,:];
// d_weights[s] = sum over f of act(x)[s,f] * d_out[s,f].
// d_x any, x's shape, may be x itself; d_weights f32 [S].
template <class V>
struct ExpertActivationGradOp : ExpertActivationAttrs {
  using Attrs = ExpertActivationAttrs;
  static constexpr const char* kName = "expert_activation_grad";
  V x, weights, d_out, offsets, d_x, d_weights;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.x, Access::kRead, "x");
    f(s.weights, Access::kRead, "weights");
    f(s.d_out, Access::kRead, "d_out");
    f(s.offsets, Access::kRead, "offsets");
    f(s.d_x, Access::kWrite, "d_x");
    f(s.d_weights, Access::kWrite, "d_weights");
  }
  template <class Self, class F>
  static void VisitSlots(Self& s, F&& f) {
    f(s.x);
    f(s.weights);
    f(s.d_out);
    f(s.d_x);
    f(s.d_weights);
  }
};

}  // namespace millrace
