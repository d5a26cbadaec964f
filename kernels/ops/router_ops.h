// Argument structs of the kernel ops that choose experts and even their loads. Conventions as in
// model_ops.h; letters and slots as in moe_ops.h.
#pragma once

#include <cstdint>
#include <numeric>

#include "kernels/ops/access.h"
#include "kernels/ops/step_ops.h"
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
// GateKind::kBalanced chooses by place alone: ids[r,k] = (r*K + k) * BalancedStride(E, K) mod E, so
// that counts of pairs differ by one at most, and a row's experts lie apart.
// logits f32 [R,E], bias f32 [E] optional, ids i32 [R,K], weights f32 [R,K]; dense.
struct RouteAttrs {
  RouterKind score = RouterKind::kSoftmax;
  bool normalise = true;
  double scaling = 1;
  int64_t groups = 1, top_groups = 1;
  GateKind gate = GateKind::kRouter;
  bool operator==(const RouteAttrs&) const = default;
};
// The smallest number from E / K on, rounded up, that has no factor in common with E.
constexpr int64_t BalancedStride(int64_t experts, int64_t top_k) {
  int64_t stride = (experts + top_k - 1) / top_k;
  while (std::gcd(stride, experts) != 1) ++stride;
  return stride;
}
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
//                their sum over all E;
// with kAccumulate added to what stats hold.
// logits f32 [R,E], ids i32 [R,K], stats f32 [n,2,E]; dense. Counts are exact below 2^24.
struct RouterStatsAttrs {
  RouterKind score = RouterKind::kSoftmax;
  Update update = Update::kOverwrite;
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
    f(s.stats, Updated{s.update}, "stats");
    f(s.scratch, Access::kScratch, "scratch");
  }
};

// The loss of the groups' stats, summed over all ranks that have rows of a group, `tokens` of them
// in all and `rows` on this rank: with L(g) = factor * sum over e of stats[g,0,e] * stats[g,1,e],
// loss_sum (=|+=) sum over g of rows * L(g), so that the ranks' sums add to tokens * L, and
// balance[g,e] = loss_weight * inv_valid_tokens * loss_scale * tokens * factor * stats[g,0,e], the
// gradient of that, scaled, with respect to each p of the group on any rank.
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

// load[e] (=|+=) offsets[e+1] - offsets[e]: how many pairs have expert e. Exact below 2^24.
// offsets i32 [E+1], load f32 [E]; dense.
struct ExpertLoadAttrs {
  Update update = Update::kOverwrite;
  bool operator==(const ExpertLoadAttrs&) const = default;
};
template <class V>
struct ExpertLoadOp : ExpertLoadAttrs {
  using Attrs = ExpertLoadAttrs;
  static constexpr const char* kName = "expert_load";
  V offsets, load;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.offsets, Access::kRead, "offsets");
    f(s.load, Updated{s.update}, "load");
  }
};

// Balancing without a loss (arXiv 2408.15664) on one shard of routers' biases, a no-op bit for bit
// unless scalars->applied: bias[i] += rate * sign(pairs / experts - load[i]) for i in `ranges`;
// pairs / experts is the mean of a layer's load in the step. f32, one rounding.
// bias, load f32 [n]. `ranges` are of the whole flat parameter; element i of the shard is flat
// element flat_begin + i.
struct RouterBiasAttrs {
  RangeList ranges;
  double rate = 0;
  int64_t pairs = 0, experts = 1;
  RankInt flat_begin;  // of this rank's shard in the flat parameter
  bool operator==(const RouterBiasAttrs&) const = default;

  template <class Self, class F>
  static void VisitRankInts(Self& s, F&& f) {
    f(s.flat_begin, "flat_begin");
  }
};
template <class V>
struct RouterBiasOp : RouterBiasAttrs {
  using Attrs = RouterBiasAttrs;
  static constexpr const char* kName = "router_bias";
  V bias, load, scalars;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.load, Access::kRead, "load");
    f(s.scalars, Access::kRead, "scalars");
    f(s.bias, Access::kAccumulate, "bias");
  }
};

}  // namespace millrace
