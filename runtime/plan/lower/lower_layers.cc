// Kernel ops of embedding, norms, linears, attention and activations, forward and backward.
#include <algorithm>
#include <cmath>

#include "runtime/plan/lower/lowering.h"

namespace millrace {

View Lowering::HeadsOf(View qkv, const NodeAttrs& attrs, int64_t first, int64_t heads) const {
  const int64_t row = qkv.layout.dims[1];
  const auto [batch, seq] = graph_.shape;
  qkv.offset += first * attrs.head_dim;
  qkv.layout.rank = 4;
  qkv.layout.dims = {batch, seq, heads, attrs.head_dim};
  qkv.layout.strides = {seq * row, row, attrs.head_dim, 1};
  return qkv;
}

void Lowering::Embedding(const Node& node) {
  EmbedOp<View> op;
  op.tokens = storage_.Read(node.inputs[0]);
  op.table = storage_.Read(node.inputs[1]);
  op.positions = storage_.Read(node.inputs[2]);
  if (op.positions) op.positions = Rows(op.positions, 0, graph_.shape.seq);
  op.out = storage_.Write(node.outputs[0]);
  op.scalars = storage_.Scalars();
  Push(op, node);
}

void Lowering::EmbeddingGrad(const Node& node) {
  EmbedGradOp<View> op;
  op.tokens = storage_.Read(node.inputs[0]);
  op.d_out = storage_.Read(node.inputs[1]);
  op.d_table = storage_.Grad(node.grads[0], op.table_update);
  op.d_positions = storage_.Grad(node.grads[1], op.positions_update);
  op.scalars = storage_.Scalars();
  Push(op, node);
}

void Lowering::Norm(const Step& step) {
  const Node& node = *step.node;
  NormOp<View> op;
  op.kind = node.attrs.norm;
  op.eps = node.attrs.eps;
  if (step.add) {
    // The second term is the branch that was just computed; the first is the residual stream.
    const ValueId residual = step.add->inputs[0], branch = step.add->inputs[1],
                  sum = step.add->outputs[0];
    op.x = storage_.Read(branch);
    op.residual = storage_.Read(residual);
    op.sum = storage_.CanReplace(branch, sum)     ? storage_.WriteOver(sum, branch)
             : storage_.CanReplace(residual, sum) ? storage_.WriteOver(sum, residual)
                                                  : storage_.Write(sum);
  } else {
    op.x = storage_.Read(node.inputs[0]);
  }
  op.weight = storage_.Read(node.inputs[1]);
  op.bias = storage_.Read(node.inputs[2]);
  op.out = storage_.Write(node.outputs[0]);
  op.mean = storage_.Write(node.outputs[1]);
  op.rstd = storage_.Write(node.outputs[2]);
  Push(op, node);
}

void Lowering::NormGrad(const Step& step) {
  const Node& node = *step.node;
  NormGradOp<View> op;
  op.kind = node.attrs.norm;
  const ValueId d_out = node.inputs[0];
  op.d_out = storage_.Read(d_out);
  op.x = storage_.Read(node.inputs[1]);
  op.weight = storage_.Read(node.inputs[2]);
  op.mean = storage_.Read(node.inputs[3]);
  op.rstd = storage_.Read(node.inputs[4]);
  ValueId d_x = node.outputs[0], bypass;
  if (step.add) {
    bypass = step.add->inputs[0] == d_x ? step.add->inputs[1] : step.add->inputs[0];
    d_x = step.add->outputs[0];
    op.d_bypass = storage_.Read(bypass);
  }
  const bool over_bypass = bypass && bypass != d_out && storage_.CanReplace(bypass, d_x);
  const bool over_d_out = bypass != d_out && storage_.CanReplace(d_out, d_x);
  op.d_x = over_bypass  ? storage_.WriteOver(d_x, bypass)
           : over_d_out ? storage_.WriteOver(d_x, d_out)
                        : storage_.Write(d_x);
  op.d_weight = storage_.Grad(node.grads[0], op.weight_update);
  op.d_bias = storage_.Grad(node.grads[1], op.bias_update);
  Push(op, node);
}

void Lowering::Linear(const Step& step) {
  const Node& node = *step.node;
  MatmulOp<View> op;
  op.a = storage_.Read(node.inputs[0]);
  op.b = Transposed(storage_.Read(node.inputs[1]));
  op.bias = storage_.Read(node.inputs[2]);
  if (step.activation) {
    op.epilogue = op.bias ? Epilogue::kBiasGelu : Epilogue::kGelu;
    // Without a gradient nobody reads the value before the activation, and it is not kept.
    if (storage_.ReadLater(node.outputs[0])) op.pre = storage_.Write(node.outputs[0]);
    op.out = storage_.Write(step.activation->outputs[0]);
  } else {
    op.epilogue = op.bias ? Epilogue::kBias : Epilogue::kNone;
    op.out = storage_.Write(node.outputs[0]);
  }
  Push(op, node);
}

void Lowering::LinearGradInput(const Step& step) {
  const Node& node = *step.node;
  MatmulOp<View> op;
  op.a = storage_.Read(node.inputs[0]);
  op.b = storage_.Read(node.inputs[1]);
  if (step.activation) {
    op.epilogue = Epilogue::kGeluGrad;
    op.pre = storage_.Read(step.activation->inputs[0]);
    op.out = storage_.Write(step.activation->outputs[0]);
  } else {
    op.out = storage_.Write(node.outputs[0]);
  }
  Push(op, node);
}

void Lowering::LinearGradWeight(const Node& node) {
  MatmulOp<View> op;
  op.a = Transposed(storage_.Read(node.inputs[0]));
  op.b = storage_.Read(node.inputs[1]);
  op.out = storage_.Grad(node.grads[0], op.update);
  op.rounding = Rounding::kOnce;  // the planner may put a temporary in place of the gradient
  Push(op, node);
}

void Lowering::BiasGrad(const Node& node) {
  ColumnSumOp<View> op;
  op.x = storage_.Read(node.inputs[0]);
  op.out = storage_.Grad(node.grads[0], op.update);
  Push(op, node);
}

void Lowering::RopeTable(const Node& node) {
  RopeTableOp<View> op;
  op.theta = node.attrs.rope_theta;
  op.scaling = node.attrs.rope_scaling;
  op.table = storage_.Write(node.outputs[0]);
  Push(op, node);
}

void Lowering::Attention(const Node& node) {
  const NodeAttrs& attrs = node.attrs;
  const View qkv = storage_.Read(node.inputs[0]);
  AttentionOp<View> op;
  op.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(attrs.head_dim)));
  op.q = HeadsOf(qkv, attrs, 0, attrs.heads);
  op.k = HeadsOf(qkv, attrs, attrs.heads, attrs.kv_heads);
  op.v = HeadsOf(qkv, attrs, attrs.heads + attrs.kv_heads, attrs.kv_heads);
  op.out = HeadsOf(storage_.Write(node.outputs[0]), attrs, 0, attrs.heads);
  op.lse = storage_.Write(node.outputs[1]);
  Push(op, node);
}

void Lowering::AttentionGrad(const Node& node) {
  const NodeAttrs& attrs = node.attrs;
  const View qkv = storage_.Read(node.inputs[0]), d_qkv = storage_.Write(node.outputs[0]);
  AttentionGradOp<View> op;
  op.deterministic = options_.deterministic || options_.backend == Backend::kCpu;
  op.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(attrs.head_dim)));
  op.q = HeadsOf(qkv, attrs, 0, attrs.heads);
  op.k = HeadsOf(qkv, attrs, attrs.heads, attrs.kv_heads);
  op.v = HeadsOf(qkv, attrs, attrs.heads + attrs.kv_heads, attrs.kv_heads);
  op.out = HeadsOf(storage_.Read(node.inputs[1]), attrs, 0, attrs.heads);
  op.lse = storage_.Read(node.inputs[2]);
  op.d_out = HeadsOf(storage_.Read(node.inputs[3]), attrs, 0, attrs.heads);
  op.d_q = HeadsOf(d_qkv, attrs, 0, attrs.heads);
  op.d_k = HeadsOf(d_qkv, attrs, attrs.heads, attrs.kv_heads);
  op.d_v = HeadsOf(d_qkv, attrs, attrs.heads + attrs.kv_heads, attrs.kv_heads);
  Push(op, node);
}

void Lowering::Rope(const Node& node, RopeDirection direction) {
  const ValueId in = node.inputs[0], out = node.outputs[0];
  MR_CHECK(storage_.CanReplace(in, out), "{}: rotates in place, but {} is read again later",
           node.label, graph_.value(in).name);
  RopeOp<View> op;
  op.direction = direction;
  op.table = storage_.Read(node.inputs[1]);
  op.x =
      HeadsOf(storage_.WriteOver(out, in), node.attrs, 0, node.attrs.heads + node.attrs.kv_heads);
  Push(op, node);
}

void Lowering::Add(const Node& node) {
  AddOp<View> op;
  const ValueId a = node.inputs[0], b = node.inputs[1], out = node.outputs[0];
  op.a = storage_.Read(a);
  op.b = storage_.Read(b);
  op.out = storage_.CanReplace(a, out)   ? storage_.WriteOver(out, a)
           : storage_.CanReplace(b, out) ? storage_.WriteOver(out, b)
                                         : storage_.Write(out);
  Push(op, node);
}

void Lowering::Activation(const Node& node) {
  ActivationOp<View> op;
  op.kind = node.attrs.activation;
  op.x = storage_.Read(node.inputs[0]);
  op.out = storage_.Write(node.outputs[0]);
  Push(op, node);
}

void Lowering::ActivationGrad(const Node& node) {
  ActivationGradOp<View> op;
  op.kind = node.attrs.activation;
  const ValueId x = node.inputs[0], d_out = node.inputs[1], d_x = node.outputs[0];
  op.x = storage_.Read(x);
  op.d_out = storage_.Read(d_out);
  op.d_x = storage_.CanReplace(x, d_x) ? storage_.WriteOver(d_x, x)
           : node.attrs.activation == ActivationKind::kGelu && storage_.CanReplace(d_out, d_x)
               ? storage_.WriteOver(d_x, d_out)
               : storage_.Write(d_x);
  Push(op, node);
}

}  // namespace millrace
