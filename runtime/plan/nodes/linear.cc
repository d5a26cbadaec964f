#include "runtime/plan/nodes/linear.h"

#include <fmt/core.h>

#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/strips.h"
#include "runtime/plan/nodes/activation.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/attention/cached_rows.h"
#include "runtime/plan/nodes/exchange.h"

namespace millrace {
namespace {

LinearEncoding EncodingOf(const Node& node) {
  return node.attrs.has_value() ? Attrs<LinearEncoding>(node) : LinearEncoding::kCompute;
}

// A weight gradient comes before the input gradient: it is the last reader of the saved input, and
// the sooner it lands the sooner its unit's reduction can begin.
//
// Not where ranks split the weight: then what is exchanged next comes first, and weight gradients
// fill the waits. d_x of gathered rows is exchanged at once: its own weight's gradient is beside
// that. Where y was summed over ranks, d_y is gathered, and beside the next such gather is this
// one's weight gradient.
void Gradient(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  const ValueId x = n.inputs[0], weight = n.inputs[1], bias = n.inputs[2];
  const bool split = !d.value(weight).placement.whole() && d.Differentiable(x);
  const NodeDef& beside = d.IsExchanged(x) ? kGatherRowsNode : kScatterSumRowsNode;
  const auto emit = [&](const NodeDef& kind, std::vector<ValueId> in, ValueId of,
                        const char* name) {
    if (split)
      d.EmitBeside(beside, kind, std::move(in), {d.ParamGrad(of)}, n, name);
    else
      d.Emit(kind, std::move(in), {}, {d.ParamGrad(of)}, n, name);
  };
  if (bias) emit(kBiasGradNode, {d_y}, bias, ":d_bias");
  emit(kLinearGradWeightNode, {d_y, x}, weight, ":d_weight");
  if (!d.Differentiable(x)) return;
  const ValueId d_x = d.NewGradient(x);
  d.Emit(kLinearGradInputNode, {d_y, weight}, {d_x}, {}, n, ":d_input");
  Contribute(d, x, d_x, n);
}

// The GELU that is the first to read the product.
void Fuse(Fuser& f, int linear) {
  const std::vector<int>& readers = f.ReadersOf(f.node(linear).outputs[0]);
  if (!f.options().fuse_bias_gelu || readers.empty() ||
      f.IsForward(readers[0]) != f.IsForward(linear) || !IsGelu(f.node(readers[0])))
    return;
  f.Absorb(linear, readers[0],
           fmt::format("GELU in the matmul's epilogue{}",
                       readers.size() > 1 ? ", its input kept for the backward" : ""));
}

void FuseGradInput(Fuser& f, int grad) {
  const std::vector<int>& readers = f.ReadersOf(f.node(grad).outputs[0]);
  if (!f.options().fuse_bias_gelu || readers.size() != 1 || !IsGeluGrad(f.node(readers[0])) ||
      f.DefinitionOf(f.node(readers[0]).inputs[0]) >= grad)
    return;
  f.Absorb(grad, readers[0], "GELU's gradient in the matmul's epilogue");
}

// Whether a product of the kind, another gradient, also takes the node's first input quantized.
bool HasAnotherForm(Lowering& l, const Node& node, const NodeDef& kind, size_t input) {
  if (EncodingOf(node) == LinearEncoding::kCompute) return false;
  const std::vector<const Node*>& readers = l.BackwardReadersOf(node.inputs[0]);
  return std::any_of(readers.begin(), readers.end(), [&](const Node* reader) {
    return reader->kind == &kind && reader->inputs[input] == node.inputs[0];
  });
}

void Lower(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  MatmulOp<View> op;
  SetFactors(
      l, node, EncodingOf(node),
      {.value = node.inputs[0], .both_ways = HasAnotherForm(l, node, kLinearGradWeightNode, 1)},
      {.value = node.inputs[1], .kind = Factor::Kind::kWeight, .transposed = true}, &op);
  op.bias = storage.Read(node.inputs[2]);
  op.in_order = l.options().in_order;
  LikeTraining(l, op.a.layout.dims[0], node.inputs[1], &op);
  const ValueId activated = step.absorbed ? step.absorbed->outputs[0] : ValueId{};
  if (activated && CanLeaveActivation(l, node.outputs[0], ActivationKind::kGelu, activated)) {
    op.epilogue = op.bias ? Epilogue::kBias : Epilogue::kNone;
    op.out = storage.Write(node.outputs[0]);
    PushProducts(l, op, node);
    return LeaveActivation(l, node.outputs[0], ActivationKind::kGelu, activated);
  }
  if (activated) {
    op.epilogue = op.bias ? Epilogue::kBiasGelu : Epilogue::kGelu;
    // Without a gradient nobody reads the value before the activation, and it is not kept.
    if (storage.ReadLater(node.outputs[0])) op.pre = storage.Write(node.outputs[0]);
    op.out = storage.Write(activated);
    op.magnitude = l.magnitudes().Form(l, activated);
  } else {
    op.epilogue = op.bias ? Epilogue::kBias : Epilogue::kNone;
    op.out = storage.Write(node.outputs[0]);
  }
  PushProducts(l, op, node);
}

void LowerGradInput(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  MatmulOp<View> op;
  SetFactors(l, node, EncodingOf(node),
             {.value = node.inputs[0],
              .kind = Factor::Kind::kGradient,
              .both_ways = HasAnotherForm(l, node, kLinearGradWeightNode, 0)},
             {.value = node.inputs[1], .kind = Factor::Kind::kWeight}, &op);
  if (step.absorbed) {
    op.epilogue = Epilogue::kGeluGrad;
    op.pre = storage.Read(step.absorbed->inputs[0]);
    op.out = storage.Write(step.absorbed->outputs[0]);
    op.magnitude = l.magnitudes().Form(l, step.absorbed->outputs[0]);
  } else {
    op.out = storage.Write(node.outputs[0]);
  }
  PushProducts(l, op, node);
}

void LowerGradWeight(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  MatmulOp<View> op;
  SetFactors(l, node, EncodingOf(node),
             {.value = node.inputs[0],
              .kind = Factor::Kind::kGradient,
              .transposed = true,
              .both_ways = HasAnotherForm(l, node, kLinearGradInputNode, 0)},
             {.value = node.inputs[1]}, &op);
  op.out = l.storage().Grad(node.grads[0], op.update);
  op.rounding = Rounding::kOnce;  // the planner may put a temporary in place of the gradient
  l.Push(op, node);
}

void LowerBiasGrad(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ColumnSumOp<View> op;
  op.x = l.storage().Read(node.inputs[0]);
  op.out = l.storage().Grad(node.grads[0], op.update);
  op.magnitude = l.magnitudes().Form(l, node.inputs[0]);
  l.Push(op, node);
}

FlopsPerToken Flops(const SemanticGraph& graph, const Node& node) {
  const std::vector<int64_t>& weight = graph.value(node.inputs[1]).dims;
  const double flops = 2.0 * static_cast<double>(weight[0]) * static_cast<double>(weight[1]);
  return {flops, flops};
}

}  // namespace

const NodeDef kLinearNode{.name = "linear",
                          .recompute = RecomputeClass::kDear,
                          .gradient = Gradient,
                          .lower = Lower,
                          .fuse = Fuse,
                          .flops = Flops};
const NodeDef kLinearGradInputNode{
    .name = "linear_grad_input", .lower = LowerGradInput, .fuse = FuseGradInput};
const NodeDef kLinearGradWeightNode{.name = "linear_grad_weight", .lower = LowerGradWeight};
const NodeDef kBiasGradNode{.name = "bias_grad", .lower = LowerBiasGrad};

void PushProducts(Lowering& l, const MatmulOp<View>& op, const Node& node) {
  using Op = MatmulOp<View>;
  PushStrips(l, node, l.graph().value(node.outputs[0]), op, {&Op::a, &Op::out, &Op::pre});
}

ValueId Linear(ForwardBuilder& b, ValueId x, const std::string& weight, const std::string& bias,
               const std::string& label) {
  const ValueId weight_value = b.Param(weight, label), bias_value = b.OptionalParam(bias, label);
  const int64_t width = b.RowsOfMatrix(weight_value, b.Columns(x, label), label);
  b.CheckDims(bias_value, {width}, label);
  const ValuePlacement placement =
      ProductPlacement(b.value(x).placement, b.value(weight_value).placement, label);
  if (bias_value)  // else it would be added once per rank
    MR_CHECK(placement.partial.empty() && b.value(bias_value).placement.Cut(0) == placement.Cut(1),
             "node {}: a bias {} onto {}", label, ToString(b.value(bias_value).placement),
             ToString(placement));
  const ValueId out =
      b.NewActivation(label, {b.RowsOf(x, label), width}, placement, b.value(weight_value).parts);
  const LinearEncoding encoding = b.linears();
  b.Push(kLinearNode, {x, weight_value, bias_value}, {out},
         encoding == LinearEncoding::kCompute ? std::any() : std::any(encoding), label);
  return out;
}

ValueId LinearF32(ForwardBuilder& b, ValueId x, const std::string& weight,
                  const std::string& label) {
  const ValueId weight_value = b.Param(weight, label);
  const int64_t width = b.RowsOfMatrix(weight_value, b.Columns(x, label), label);
  const ValueId out = b.NewStatistic(
      label, {b.RowsOf(x, label), width},
      ProductPlacement(b.value(x).placement, b.value(weight_value).placement, label));
  b.Push(kLinearNode, {x, weight_value, {}}, {out}, {}, label);
  return out;
}

}  // namespace millrace
