#include "runtime/plan/nodes/moe/grouped_linear.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/add.h"

namespace millrace {
namespace {

struct GroupedLinearAttrs {
  int64_t top_k = 1;
  int64_t expected = 0;  // of the slots
};

// The weight gradient first, as in linear.cc.
void Gradient(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  const ValueId x = n.inputs[0], weight = n.inputs[1], offsets = n.inputs[2];
  d.Emit(kGroupedLinearGradWeightNode, {d_y, x, offsets}, {}, {d.ParamGrad(weight)}, n,
         ":d_weight");
  if (!d.Differentiable(x)) return;
  const ValueId d_x = d.NewGradient(x);
  d.Emit(kGroupedLinearGradInputNode, {d_y, weight, offsets}, {d_x}, {}, n, ":d_input");
  Contribute(d, x, d_x, n);
}

void LowerProduct(Lowering& l, const Node& node, bool transposed) {
  GroupedMatmulOp<View> op;
  op.a = l.storage().Read(node.inputs[0]);
  const View weight = l.storage().Read(node.inputs[1]);
  op.b = transposed ? Transposed(weight) : weight;
  op.offsets = l.storage().Read(node.inputs[2]);
  op.out = l.storage().Write(node.outputs[0]);
  op.expected = Attrs<GroupedLinearAttrs>(node).expected;
  l.Push(op, node);
}
void Lower(Lowering& l, const Step& step) { LowerProduct(l, *step.node, true); }
void LowerGradInput(Lowering& l, const Step& step) { LowerProduct(l, *step.node, false); }

void LowerGradWeight(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  GroupedWeightGradOp<View> op;
  op.d_out = l.storage().Read(node.inputs[0]);
  op.a = l.storage().Read(node.inputs[1]);
  op.offsets = l.storage().Read(node.inputs[2]);
  op.out = l.storage().Grad(node.grads[0], op.update);
  op.expected = Attrs<GroupedLinearAttrs>(node).expected;
  l.Push(op, node);
}

FlopsPerToken Flops(const SemanticGraph& graph, const Node& node) {
  const std::vector<int64_t>& weight = graph.value(node.inputs[1]).dims;
  const double flops = 2.0 * static_cast<double>(weight[1]) * static_cast<double>(weight[2]) *
                       static_cast<double>(Attrs<GroupedLinearAttrs>(node).top_k);
  return {flops, flops};
}

}  // namespace

const NodeDef kGroupedLinearNode{.name = "grouped_linear",
                                 .recompute = RecomputeClass::kDear,
                                 .gradient = Gradient,
                                 .lower = Lower,
                                 .flops = Flops};
const NodeDef kReceivedLinearNode{.name = "grouped_linear",
                                  .recompute = RecomputeClass::kExchange,
                                  .gradient = Gradient,
                                  .lower = Lower,
                                  .flops = Flops};
const NodeDef kGroupedLinearGradInputNode{.name = "grouped_linear_grad_input",
                                          .lower = LowerGradInput};
const NodeDef kGroupedLinearGradWeightNode{.name = "grouped_linear_grad_weight",
                                           .lower = LowerGradWeight};

ValueId GroupedLinear(ForwardBuilder& b, ValueId x, const std::string& weight,
                      const Routing& routing, const std::string& label) {
  const ValueId weight_value = b.Param(weight, label);
  const std::vector<int64_t>& dims = b.value(weight_value).dims;
  const int64_t experts = b.value(routing.offsets).dims[0] - 1, columns = b.Columns(x, label);
  const ValuePlacement split{{routing.split}, {}};
  MR_CHECK(dims.size() == 3 && dims[0] == experts && dims[2] == columns &&
               b.value(weight_value).placement == split,
           "node {}: parameter {} is [{}], {}; the node needs [{}, N, {}], split over {}", label,
           weight, fmt::join(dims, ", "), ToString(b.value(weight_value).placement), experts,
           columns, ToString(routing.split));
  const ValueId out = b.NewActivation(label, {b.RowsOf(x, label), dims[1]},
                                      RowwisePlacement(b.value(x).placement, label));
  b.Push(routing.expected > 0 ? kReceivedLinearNode : kGroupedLinearNode,
         {x, weight_value, routing.offsets}, {out},
         GroupedLinearAttrs{routing.top_k, routing.expected}, label);
  return out;
}

}  // namespace millrace
