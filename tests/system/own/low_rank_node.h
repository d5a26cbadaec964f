// A kind of node that the runtime does not know, whole in this file: what models call, its gradient
// rule, its lowering, its recompute class and its FLOPs.
//
// in: x [R,K], a [D,K], b [N,D]   out: y = (x a^T) b^T   grad: a, b
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/graph/forward_builder.h"
#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/add.h"

namespace millrace::test {

// out = left right of `node`.
inline void PushProduct(Lowering& l, const Node& node, const View& left, const View& right,
                        const View& out, const std::string& suffix) {
  MatmulOp<View> op;
  op.a = left;
  op.b = right;
  op.out = out;
  l.Push(op, node, suffix);
}

inline View InnerOf(Lowering& l, const Node& node, const View& x, const View& a,
                    const std::string& name) {
  return l.storage().Temporary(node.label + name,
                               DenseLayout(x.layout.dtype, {x.layout.dims[0], a.layout.dims[0]}));
}

inline void LowerLowRank(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  const View x = storage.Read(node.inputs[0]), a = storage.Read(node.inputs[1]),
             b = storage.Read(node.inputs[2]);
  const View inner = InnerOf(l, node, x, a, "/inner");
  PushProduct(l, node, x, Transposed(a), inner, "/inner");
  PushProduct(l, node, inner, Transposed(b), storage.Write(node.outputs[0]), "");
}

// in: d_y, x, a, b   out: d_x   grad: a, b. Forms the inner product again: it is small.
inline void LowerLowRankGrad(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  const View d_y = storage.Read(node.inputs[0]), x = storage.Read(node.inputs[1]),
             a = storage.Read(node.inputs[2]), b = storage.Read(node.inputs[3]);
  const View inner = InnerOf(l, node, x, a, "/inner"), d_inner = InnerOf(l, node, x, a, "/d_inner");
  PushProduct(l, node, x, Transposed(a), inner, "/inner");
  PushProduct(l, node, d_y, b, d_inner, "/d_inner");
  const auto weight = [&](const View& left, const View& right, ValueId grad, const char* suffix) {
    MatmulOp<View> op;
    op.a = Transposed(left);
    op.b = right;
    op.out = storage.Grad(grad, op.update);
    op.rounding = Rounding::kOnce;
    l.Push(op, node, suffix);
  };
  weight(d_y, inner, node.grads[1], "/d_b");
  weight(d_inner, x, node.grads[0], "/d_a");
  PushProduct(l, node, d_inner, a, storage.Write(node.outputs[0]), "/d_x");
}

inline const NodeDef kLowRankGradNode{.name = "low_rank_grad", .lower = LowerLowRankGrad};

inline void LowRankGradient(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  const ValueId d_x = d.NewGradient(n.inputs[0]);
  d.Emit(kLowRankGradNode, {d_y, n.inputs[0], n.inputs[1], n.inputs[2]}, {d_x},
         {d.ParamGrad(n.inputs[1]), d.ParamGrad(n.inputs[2])}, n, ":grad");
  Contribute(d, n.inputs[0], d_x, n);
}

inline FlopsPerToken LowRankFlops(const SemanticGraph& graph, const Node& node) {
  double flops = 0;
  for (const size_t factor : {1u, 2u}) {
    const std::vector<int64_t>& dims = graph.value(node.inputs[factor]).dims;
    flops += 2.0 * static_cast<double>(dims[0] * dims[1]);
  }
  return {flops, flops};
}

inline const NodeDef kLowRankNode{.name = "low_rank",
                                  .recompute = RecomputeClass::kDear,
                                  .gradient = LowRankGradient,
                                  .lower = LowerLowRank,
                                  .flops = LowRankFlops};

inline ValueId LowRank(ForwardBuilder& builder, ValueId x, const std::string& a,
                       const std::string& b, const std::string& label) {
  const ValueId a_value = builder.Param(a, label), b_value = builder.Param(b, label);
  const int64_t inner = builder.RowsOfMatrix(a_value, builder.Columns(x, label), label),
                width = builder.RowsOfMatrix(b_value, inner, label);
  const ValueId out = builder.NewActivation(label, {builder.shape().rows(), width});
  builder.Push(kLowRankNode, {x, a_value, b_value}, {out}, {}, label);
  return out;
}

}  // namespace millrace::test
