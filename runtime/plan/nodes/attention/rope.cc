#include "runtime/plan/nodes/attention/rope.h"

#include <fmt/core.h>

#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/attention/cached_rows.h"

namespace millrace {
namespace {

// Rows of the table: a position each.
int64_t Positions(const ForwardBuilder& b) {
  return b.cache() != nullptr ? b.cache()->length : b.shape().seq;
}

// The rotation is orthogonal: its gradient is the inverse rotation and needs the table only.
void Gradient(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  const ValueId d_qkv = d.NewGradient(n.inputs[0]);
  std::vector<ValueId> inputs = n.inputs;
  inputs[0] = d_y;
  d.Emit(kRopeGradNode, std::move(inputs), {d_qkv}, {}, n, ":grad");
  Contribute(d, n.inputs[0], d_qkv, n);
}

void LowerTable(Lowering& l, const Step& step) {
  RopeTableOp<View> op;
  static_cast<RopeTableAttrs&>(op) = Attrs<RopeTableAttrs>(*step.node);
  op.table = l.storage().Write(step.node->outputs[0]);
  l.Push(op, *step.node);
}

void LowerRotation(Lowering& l, const Node& node, RopeDirection direction) {
  ValueStorage& storage = l.storage();
  const HeadsAttrs& attrs = Attrs<HeadsAttrs>(node);
  const ValueId in = node.inputs[0], out = node.outputs[0];
  MR_CHECK(storage.CanReplace(in, out), "{}: rotates in place, but {} is read again later",
           node.label, l.graph().value(in).name);
  RopeOp<View> op;
  op.direction = direction;
  op.table = storage.Read(node.inputs[1]);
  if (node.inputs.size() > 2) op.documents = storage.Read(node.inputs[2]);
  op.x =
      HeadsOf(storage.WriteOver(out, in), l.graph().shape, attrs, 0, attrs.heads + attrs.kv_heads);
  l.Push(op, node);
}
void Lower(Lowering& l, const Step& step) { LowerRotation(l, *step.node, RopeDirection::kForward); }
void LowerGrad(Lowering& l, const Step& step) {
  LowerRotation(l, *step.node, RopeDirection::kInverse);
}

}  // namespace

const NodeDef kRopeTableNode{.name = "rope_table", .lower = LowerTable};
const NodeDef kRopeNode{
    .name = "rope", .recompute = RecomputeClass::kDear, .gradient = Gradient, .lower = Lower};
const NodeDef kRopeGradNode{.name = "rope_grad", .lower = LowerGrad};

ValueId RopeTable(ForwardBuilder& b, int64_t head_dim, double theta, const RopeScaling& scaling) {
  MR_CHECK(head_dim > 0 && head_dim % 2 == 0, "rope table: head_dim {} is not even", head_dim);
  const std::string name =
      b.graph().prologue.empty() ? "rope_table" : fmt::format("rope_table_{}", head_dim);
  const ValueId table =
      b.NewValue(name, ValueRole::kConstant, DType::kF32, {Positions(b), head_dim / 2, 2});
  b.PushConstant(kRopeTableNode, table, RopeTableAttrs{theta, scaling, b.graph().context_rows()},
                 name);
  return table;
}

ValueId Rope(ForwardBuilder& b, ValueId qkv, ValueId table, const HeadsAttrs& heads,
             const std::string& label) {
  b.CheckAllRows(qkv, 3, label);
  const int64_t width = b.Columns(qkv, label);
  CheckHeads(heads, width, label);
  b.CheckDims(table, {Positions(b), heads.head_dim / 2, 2}, label);
  if (b.cache() != nullptr) return RopeRows(b, qkv, table, heads, label);
  const ValueId out =
      b.NewActivation(label, {b.shape().rows(), width}, b.value(qkv).placement, b.value(qkv).parts);
  b.Push(kRopeNode, b.WithDocuments({qkv, table}), {out}, heads, label);
  return out;
}

}  // namespace millrace
