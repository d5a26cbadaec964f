// Argument structs of the kernel ops of a mixture of experts. Conventions as in model_ops.h.
//
// Letters  R rows (tokens) of this rank, E experts, K experts of a token, S slots: rows in the
//          order of the experts that work on them, C model width, F hidden width of an expert.
// Slots    Expert e has slots [offsets[e], offsets[e+1]), offsets i32 [E+1] on the device: no count
//          reaches the host, and shapes hold S, the most there can be. Slots from offsets[E] on are
//          not live: they are neither read nor written. VisitSlots(op, f) calls f(view) for the
//          operands whose rows are slots.
// Order    Within an expert slots follow (token, k). Every sum has an order of its own; there are
//          no atomics. So bits depend on the operands alone.
// Limits   E <= kMaxExperts, K <= kMaxTopK.
#pragma once

#include <cstdint>

#include "kernels/ops/access.h"
#include "runtime/base/policies.h"

namespace millrace {

inline constexpr int64_t kMaxExperts = 1024;
inline constexpr int64_t kMaxTopK = 32;

// Scores of a row's logits: s = softmax(logits) over all E, or s = sigmoid(logits).
// Choice: experts fall into `groups` groups of E/groups neighbours. A group's value is the sum of
// its two largest keys (of its one key), key = s + bias; the `top_groups` groups of largest value
// stay. Of their experts those of the K largest keys are chosen, largest first. Of equal keys or
// values the lower index is first; a NaN is below all numbers.
// ids[r,k] is the k-th choice; weights[r,k] = scaling * s[ids[r,k]], divided by the sum of the K
// chosen s + 1e-20 if `normalise`. The bias has no part in weights (arXiv 2408.15664, 2412.19437).
// logits f32 [R,E], bias f32 [E] optional, ids i32 [R,K], weights f32 [R,K]; dense.
struct RouteAttrs {
  RouterKind score = RouterKind::kSoftmax;
  bool normalise = true;
  double scaling = 1;
  int64_t groups = 1, top_groups = 1;
  bool operator==(const RouteAttrs&) const = default;
};
template <class V>
struct RouteOp : RouteAttrs {
  using Attrs = RouteAttrs;
  static constexpr const char* kName = "route";
  V logits, bias, ids, weights;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.logits, Access::kRead, "logits");
    f(s.bias, Access::kRead, "bias");
    f(s.ids, Access::kWrite, "ids");
    f(s.weights, Access::kWrite, "weights");
  }
};

// d_logits of RouteOp from d_weights; the choice has no gradient. With `balance` [n,E], of each
// expert's probability p in rows of group g = r / (R/n) (RouterStatsOp), the gradient balance[g,e]
// is added to what comes by the weights.
// d_logits any [R,E], balance f32 [n,E] optional, dense. Others as in RouteOp.
template <class V>
struct RouteGradOp : RouteAttrs {
  using Attrs = RouteAttrs;
  static constexpr const char* kName = "route_grad";
  V logits, ids, d_weights, balance, d_logits;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.logits, Access::kRead, "logits");
    f(s.ids, Access::kRead, "ids");
    f(s.d_weights, Access::kRead, "d_weights");
    f(s.balance, Access::kRead, "balance");
    f(s.d_logits, Access::kWrite, "d_logits");
  }
};

// What a loss that evens the experts' loads looks at, of n groups of R/n rows each:
// stats[g,0,e] = how many pairs (r,k) of the group's rows have ids[r,k] == e;
// stats[g,1,e] = sum over the group's rows of p[r,e], the scores of RouteOp, of sigmoids divided by
//                their sum over all E.
// logits f32 [R,E], ids i32 [R,K], stats f32 [n,2,E]; dense. Counts are exact below 2^24.
struct RouterStatsAttrs {
  RouterKind score = RouterKind::kSoftmax;
  bool operator==(const RouterStatsAttrs&) const = default;
};
template <class V>
struct RouterStatsOp : RouterStatsAttrs {
  using Attrs = RouterStatsAttrs;
  static constexpr const char* kName = "router_stats";
  V logits, ids, stats, scratch;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.logits, Access::kRead, "logits");
    f(s.ids, Access::kRead, "ids");
    f(s.stats, Access::kWrite, "stats");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

// The loss of the groups' stats, summed over all ranks that have rows of a group, `tokens` of them
// in all and `rows` on this rank: with L(g) = factor * sum over e of stats[g,0,e] * stats[g,1,e],
// loss_sum (=|+=) sum over g of rows * L(g), so that the ranks' sums add to tokens * L, and
// balance[g,e] = loss_weight * inv_valid_tokens * tokens * factor * stats[g,0,e], the gradient of
// that with respect to each p of the group on any rank.
// stats f32 [n,2,E], balance f32 [n,E], loss_sum f64 [1].
struct RouterBalanceAttrs {
  double factor = 1, loss_weight = 1;
  int64_t rows = 0, tokens = 0;
  Update loss_update = Update::kOverwrite;
  bool operator==(const RouterBalanceAttrs&) const = default;
};
template <class V>
struct RouterBalanceOp : RouterBalanceAttrs {
  using Attrs = RouterBalanceAttrs;
  static constexpr const char* kName = "router_balance";
  V stats, loss_sum, balance, scalars;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.stats, Access::kRead, "stats");
    f(s.scalars, Access::kRead, "scalars");
    f(s.loss_sum, Updated{s.loss_update}, "loss_sum");
    f(s.balance, Access::kWrite, "balance");
  }
};

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
// [S], offsets i32 [E+1].
struct DispatchAttrs {
  int64_t top_k = 1;  // K
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
template <class V>
struct GroupedMatmulOp : NoAttrs {
  using Attrs = NoAttrs;
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
