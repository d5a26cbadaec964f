#include "runtime/plan/nodes/attention/head_norm.h"

#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/add.h"

namespace millrace {
namespace {

void Gradient(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  const ValueId d_x = d.NewGradient(n.inputs[0]);
  d.Emit(kHeadNormGradNode, {d_y, n.inputs[0], n.inputs[1], n.inputs[2], n.outputs[1]}, {d_x},
         {d.ParamGrad(n.inputs[1]), d.ParamGrad(n.inputs[2])}, n, ":grad");
  Contribute(d, n.inputs[0], d_x, n);
}

void Lower(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  const auto& attrs = Attrs<HeadNormNodeAttrs>(node);
  HeadNormOp<View> op;
  op.heads = attrs.heads;
  op.kv_heads = attrs.kv_heads;
  op.eps = attrs.eps;
  op.x = storage.Read(node.inputs[0]);
  op.q_weight = storage.Read(node.inputs[1]);
  op.k_weight = storage.Read(node.inputs[2]);
  op.out = storage.Write(node.outputs[0]);
  op.rstd = storage.Write(node.outputs[1]);
  l.Push(op, node);
}

void LowerGrad(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  const auto& attrs = Attrs<HeadNormNodeAttrs>(node);
  HeadNormGradOp<View> op;
  op.heads = attrs.heads;
  op.kv_heads = attrs.kv_heads;
  const ValueId d_out = node.inputs[0], d_x = node.outputs[0];
  op.d_out = storage.Read(d_out);
  op.x = storage.Read(node.inputs[1]);
  op.q_weight = storage.Read(node.inputs[2]);
  op.k_weight = storage.Read(node.inputs[3]);
  op.rstd = storage.Read(node.inputs[4]);
  op.d_x = storage.CanReplace(d_out, d_x) ? storage.WriteOver(d_x, d_out) : storage.Write(d_x);
  op.d_q_weight = storage.Grad(node.grads[0], op.q_update);
  op.d_k_weight = storage.Grad(node.grads[1], op.k_update);
  l.Push(op, node);
}

}  // namespace

const NodeDef kHeadNormNode{
    .name = "head_norm", .recompute = RecomputeClass::kCheap, .gradient = Gradient, .lower = Lower};
const NodeDef kHeadNormGradNode{.name = "head_norm_grad", .lower = LowerGrad};

ValueId HeadNorm(ForwardBuilder& b, ValueId qkv, const std::string& q_weight,
                 const std::string& k_weight, const HeadsAttrs& heads, float eps,
                 const std::string& label) {
  b.CheckAllRows(qkv, 3, label);
  const int64_t width = b.Columns(qkv, label);
  CheckHeads(heads, width, label);
  const ValueId q = b.Param(q_weight, label), k = b.Param(k_weight, label);
  b.CheckDims(q, {heads.head_dim}, label);
  b.CheckDims(k, {heads.head_dim}, label);
  const ValuePlacement& placement = b.value(qkv).placement;
  const ValueId out =
      b.NewActivation(label, {b.shape().rows(), width}, placement, b.value(qkv).parts);
  const ValueId rstd =
      b.NewStatistic(label + ".rstd", {b.shape().rows(), heads.heads + heads.kv_heads}, placement);
  b.Push(kHeadNormNode, {qkv, q, k}, {out, rstd}, HeadNormNodeAttrs{heads, eps}, label);
  return out;
}

}  // namespace millrace
