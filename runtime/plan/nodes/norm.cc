#include "runtime/plan/nodes/norm.h"

#include <fmt/core.h>

#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/strips.h"
#include "runtime/plan/nodes/add.h"

namespace millrace {
namespace {

void Gradient(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  const ValueId d_x = d.NewGradient(n.inputs[0]);
  d.Emit(kNormGradNode, {d_y, n.inputs[0], n.inputs[1], n.outputs[1], n.outputs[2]}, {d_x},
         {d.ParamGrad(n.inputs[1]), d.ParamGrad(n.inputs[2])}, n, ":grad");
  Contribute(d, n.inputs[0], d_x, n);
}

// The sum that the norm reads, when nothing reads it in between.
void Fuse(Fuser& f, int norm) {
  const ValueId sum = f.node(norm).inputs[0];
  const int add = f.DefinitionOf(sum);
  if (!f.options().fuse_residual_norm || add < 0 || f.node(add).kind != &kAddNode || !f.Free(add) ||
      f.IsForward(add) != f.IsForward(norm))
    return;
  if (f.node(add).inputs[0] == f.node(add).inputs[1]) return;
  if (f.ReadersOf(sum).front() < norm)
    return;  // something needs the sum before the norm would form it
  f.Absorb(norm, add, fmt::format("forms the residual sum {} itself", f.node(add).label));
}

// The sum of its d_x, when that is its only reader and the other term exists already.
void FuseGrad(Fuser& f, int grad) {
  const ValueId d_x = f.node(grad).outputs[0];
  const std::vector<int>& readers = f.ReadersOf(d_x);
  if (!f.options().fuse_residual_norm || readers.size() != 1 ||
      f.node(readers[0]).kind != &kAddNode || !f.Free(readers[0]))
    return;
  const Node& add = f.node(readers[0]);
  const ValueId bypass = add.inputs[0] == d_x ? add.inputs[1] : add.inputs[0];
  if (bypass == d_x || f.DefinitionOf(bypass) >= grad) return;
  f.Absorb(grad, readers[0], "adds the gradient that bypasses the norm");
}

void Lower(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  NormOp<View> op;
  static_cast<NormAttrs&>(op) = Attrs<NormAttrs>(node);
  if (const Node* add = step.absorbed) {
    // The second term is the branch that was just computed; the first is the residual stream.
    const ValueId residual = add->inputs[0], branch = add->inputs[1], sum = add->outputs[0];
    op.x = storage.Read(branch);
    op.residual = storage.Read(residual);
    op.sum = storage.CanReplace(branch, sum)     ? storage.WriteOver(sum, branch)
             : storage.CanReplace(residual, sum) ? storage.WriteOver(sum, residual)
                                                 : storage.Write(sum);
  } else {
    op.x = storage.Read(node.inputs[0]);
  }
  op.weight = storage.Read(node.inputs[1]);
  op.bias = storage.Read(node.inputs[2]);
  op.out = storage.Write(node.outputs[0]);
  op.mean = storage.Write(node.outputs[1]);
  op.rstd = storage.Write(node.outputs[2]);
  op.magnitude = l.magnitudes().Form(l, node.outputs[0]);
  using Op = NormOp<View>;
  PushStrips(l, node, l.graph().value(node.outputs[0]), op,
             {&Op::x, &Op::residual, &Op::sum, &Op::out, &Op::mean, &Op::rstd});
}

void LowerGrad(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  NormGradOp<View> op;
  op.kind = Attrs<NormAttrs>(node).kind;
  const ValueId d_out = node.inputs[0];
  op.d_out = storage.Read(d_out);
  op.x = storage.Read(node.inputs[1]);
  op.weight = storage.Read(node.inputs[2]);
  op.mean = storage.Read(node.inputs[3]);
  op.rstd = storage.Read(node.inputs[4]);
  ValueId d_x = node.outputs[0], bypass;
  if (const Node* add = step.absorbed) {
    bypass = add->inputs[0] == d_x ? add->inputs[1] : add->inputs[0];
    d_x = add->outputs[0];
    op.d_bypass = storage.Read(bypass);
  }
  const bool over_bypass = bypass && bypass != d_out && storage.CanReplace(bypass, d_x);
  const bool over_d_out = bypass != d_out && storage.CanReplace(d_out, d_x);
  // Gradients of weights are formed of what bypasses the norm, and of d_out none.
  const bool leave_bypass = over_d_out && l.options().weights_beside;
  op.d_x = over_bypass && !leave_bypass ? storage.WriteOver(d_x, bypass)
           : over_d_out                 ? storage.WriteOver(d_x, d_out)
                                        : storage.Write(d_x);
  op.magnitude = l.magnitudes().Form(l, d_x);
  using Op = NormGradOp<View>;
  PushStrips(l, node, l.graph().value(d_x), op,
             {&Op::d_out, &Op::x, &Op::mean, &Op::rstd, &Op::d_bypass, &Op::d_x},
             [&](Op part, const auto& push) {
               NormSumsOp<View> sums;
               sums.d_weight = storage.Grad(node.grads[0], sums.weight_update);
               sums.d_bias = storage.Grad(node.grads[1], sums.bias_update);
               const auto shapes = ConvertOp<NormGradOp, View, Shape>(part, [](const View& view) {
                 return Shape{view.layout, static_cast<bool>(view)};
               });
               part.partials = sums.partials = storage.Temporary(
                   node.label + ".partials",
                   NormPartialsLayout(shapes, sums.d_bias ? 2 : 1, l.options().backend));
               push(part);
               push(sums, ":sums");
             });
}

}  // namespace

const NodeDef kNormNode{.name = "norm",
                        .recompute = RecomputeClass::kCheap,
                        .gradient = Gradient,
                        .lower = Lower,
                        .fuse = Fuse};
const NodeDef kNormGradNode{.name = "norm_grad", .lower = LowerGrad, .fuse = FuseGrad};

ValueId Norm(ForwardBuilder& b, ValueId x, const std::string& weight, const std::string& bias,
             NormKind kind, float eps, const std::string& label) {
  const int64_t width = b.Columns(x, label), rows = b.RowsOf(x, label);
  const ValuePlacement placement = RowwisePlacement(b.value(x).placement, label);
  const ValueId weight_value = b.Param(weight, label), bias_value = b.OptionalParam(bias, label);
  b.CheckDims(weight_value, {width}, label);
  b.CheckDims(bias_value, {width}, label);
  const ValueId out = b.NewActivation(label, {rows, width}, placement);
  const ValueId mean =
      kind == NormKind::kLayer ? b.NewStatistic(label + ".mean", {rows}, placement) : ValueId{};
  const ValueId rstd = b.NewStatistic(label + ".rstd", {rows}, placement);
  b.Push(kNormNode, {x, weight_value, bias_value}, {out, mean, rstd}, NormAttrs{kind, eps}, label);
  return out;
}

}  // namespace millrace
