#include "runtime/plan/nodes/attention.h"

#include <cmath>

#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/add.h"

namespace millrace {
namespace {

void Gradient(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  const ValueId d_qkv = d.NewGradient(n.inputs[0]);
  d.Emit(kAttentionGradNode, {n.inputs[0], n.outputs[0], n.outputs[1], d_y}, {d_qkv}, {}, n,
         ":grad");
  Contribute(d, n.inputs[0], d_qkv, n);
}

float ScaleOf(const HeadsAttrs& attrs) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(attrs.head_dim)));
}

void Lower(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  const HeadsAttrs& attrs = Attrs<HeadsAttrs>(node);
  const auto heads = [&](const View& rows, int64_t first, int64_t count) {
    return HeadsOf(rows, l.graph().shape, attrs, first, count);
  };
  const View qkv = l.storage().Read(node.inputs[0]);
  AttentionOp<View> op;
  op.scale = ScaleOf(attrs);
  op.q = heads(qkv, 0, attrs.heads);
  op.k = heads(qkv, attrs.heads, attrs.kv_heads);
  op.v = heads(qkv, attrs.heads + attrs.kv_heads, attrs.kv_heads);
  op.out = heads(l.storage().Write(node.outputs[0]), 0, attrs.heads);
  op.lse = l.storage().Write(node.outputs[1]);
  l.Push(op, node);
}

void LowerGrad(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  const HeadsAttrs& attrs = Attrs<HeadsAttrs>(node);
  const auto heads = [&](const View& rows, int64_t first, int64_t count) {
    return HeadsOf(rows, l.graph().shape, attrs, first, count);
  };
  const View qkv = storage.Read(node.inputs[0]), d_qkv = storage.Write(node.outputs[0]);
  AttentionGradOp<View> op;
  op.deterministic = l.options().deterministic || l.options().backend == Backend::kCpu;
  op.scale = ScaleOf(attrs);
  op.q = heads(qkv, 0, attrs.heads);
  op.k = heads(qkv, attrs.heads, attrs.kv_heads);
  op.v = heads(qkv, attrs.heads + attrs.kv_heads, attrs.kv_heads);
  op.out = heads(storage.Read(node.inputs[1]), 0, attrs.heads);
  op.lse = storage.Read(node.inputs[2]);
  op.d_out = heads(storage.Read(node.inputs[3]), 0, attrs.heads);
  op.d_q = heads(d_qkv, 0, attrs.heads);
  op.d_k = heads(d_qkv, attrs.heads, attrs.kv_heads);
  op.d_v = heads(d_qkv, attrs.heads + attrs.kv_heads, attrs.kv_heads);
  l.Push(op, node);
}

// Two products over T pairs per row, of which half are causal (not T + 1 halves: model_flops.h).
FlopsPerToken Flops(const SemanticGraph& graph, const Node& node) {
  const HeadsAttrs& attrs = Attrs<HeadsAttrs>(node);
  const double columns = static_cast<double>(attrs.heads * attrs.head_dim),
               length = static_cast<double>(graph.shape.seq);
  return {2 * columns * length, 4 * columns * length};
}

}  // namespace

const NodeDef kAttentionNode{.name = "attention",
                             .recompute = RecomputeClass::kDear,
                             .gradient = Gradient,
                             .lower = Lower,
                             .flops = Flops};
const NodeDef kAttentionGradNode{.name = "attention_grad", .lower = LowerGrad};

ValueId Attention(ForwardBuilder& b, ValueId qkv, const HeadsAttrs& heads,
                  const std::string& label) {
  b.CheckAllRows(qkv, 3, label);
  CheckHeads(heads, b.Columns(qkv, label), label);
  const auto [batch, seq] = b.shape();
  const AxisSet split = b.value(qkv).placement.Cut(1);  // by heads
  const ValueId out =
      b.NewActivation(label, {batch * seq, heads.heads * heads.head_dim}, {{AxisSet(), split}, {}});
  const ValueId lse = b.NewStatistic(label + ".lse", {batch, heads.heads, seq},
                                     {{AxisSet(), split, AxisSet()}, {}});
  b.Push(kAttentionNode, {qkv}, {out, lse}, heads, label);
  return out;
}

}  // namespace millrace
