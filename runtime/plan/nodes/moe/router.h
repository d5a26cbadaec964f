// Which experts compute a token, with which weights, and where its rows lie among theirs.
//
// kRouterNode      in: logits f32 [R,E], bias f32 [E]?
//                  out: ids i32 [R,K], weights f32 [R,K], stats f32 [n,2,E]?
// kRouterGradNode  in: logits, ids, d_weights, d_stats?
//                  out: d_logits [R,E] of the compute dtype
// kRouterTallyNode in: logits, ids   tallies of the step: RouterStatsOp's stats of all rows
// kSlotsNode       in: ids, bias?   out: offsets i32 [E+1], slots i32 [R,K], pairs i32 [R*K]
// kExpertLoadNode  in: offsets   grad: bias, the pairs that have each expert
// kBalanceNode     in: stats of each layer   out: loss, d_stats f32 [n,E] of each layer
//
// kernels/ops/{router_ops,moe_ops}.h say what they compute. All their outputs are kept for the
// backward; logits are not, where a block is computed again. The gradient of stats is that of the
// probabilities alone, and is formed with the loss, in the forward. A bias has no gradient: what
// its update follows (UpdateRule::kBalance) stands in that place.
// Tallies are for people: nothing of a step depends on them.
#pragma once

#include <string>
#include <vector>

#include "kernels/ops/router_ops.h"
#include "runtime/plan/graph/forward_builder.h"

namespace millrace {

extern const NodeDef kRouterNode, kRouterGradNode, kRouterTallyNode, kSlotsNode, kExpertLoadNode,
    kBalanceNode;

struct Routing {
  ValueId ids, weights;           // [R,K]
  ValueId offsets, slots, pairs;  // [E+1], [R,K], [S] with S = R*K
  ValueId stats;                  // [n,2,E], of a loss that asks for them
  int64_t top_k = 0;
  int64_t expected = 0;  // slots that are live on average, where there are more; 0: all
  AxisSet split;         // along which ranks have experts of their own (expert_exchange.h)
};

// logits = x weight^T in f32, weight [E,C]; `bias` names a parameter [E] in f32, "" for none. R are
// the rows that this rank has of x, whole; its experts are all E.
// The stats are those that `balance` looks at.
Routing Route(ForwardBuilder& b, ValueId x, const std::string& weight, const std::string& bias,
              const RouteAttrs& attrs, int64_t top_k, AuxLossKind balance,
              const std::string& label);

// The head of the loss called `loss`, of all layers' stats, [n,2,E] each:
// kSwitch    sum over layers of E / (K T^2) * sum over e of count[e] * sum of p[e], T the
//            microbatch's rows on all ranks; 1 for each layer when loads are even
// kSequence  the same of each sequence, T its rows; the mean over sequences
// kPooled    E / (L T)^2 * sum over e of both sums over all L layers; K when loads are even
// Counts and probabilities are summed over all ranks that have rows of the group before they are
// multiplied: the loss depends on the microbatch alone. Error(kConfig): kSequence where ranks along
// the tensor axis have parts of different sequences.
void Balance(ForwardBuilder& b, const std::vector<ValueId>& stats, AuxLossKind kind, int64_t top_k,
             const std::string& loss, const std::string& label);

}  // namespace millrace
