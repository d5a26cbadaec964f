#include "runtime/plan/lower/lower.h"

#include <utility>

#include "runtime/plan/lower/lowering.h"

namespace millrace {
namespace {

Shape ShapeOf(const View& view) {
  return Shape{.layout = view.layout, .present = static_cast<bool>(view)};
}

}  // namespace

std::string Refusal(const MatmulOp<View>& op, Backend backend) {
  return WhyUnsupported(ConvertOp<MatmulOp, View, Shape>(op, ShapeOf), backend);
}
std::string Refusal(const AttentionOp<View>& op, Backend backend) {
  return WhyUnsupported(ConvertOp<AttentionOp, View, Shape>(op, ShapeOf), backend);
}
std::string Refusal(const RopeOp<View>& op, Backend backend) {
  return WhyUnsupported(ConvertOp<RopeOp, View, Shape>(op, ShapeOf), backend);
}

View Transposed(View view) {
  std::swap(view.layout.dims[0], view.layout.dims[1]);
  std::swap(view.layout.strides[0], view.layout.strides[1]);
  return view;
}

// Rows [begin, begin + rows) of a 2-D view.
View Rows(View view, int64_t begin, int64_t rows) {
  view.offset += begin * view.layout.strides[0];
  view.layout.dims[0] = rows;
  return view;
}

void Lowering::LowerStep(const Step& step) {
  const Node& node = *step.node;
  switch (node.kind) {
    case NodeKind::kEmbedding:
      return Embedding(node);
    case NodeKind::kEmbeddingGrad:
      return EmbeddingGrad(node);
    case NodeKind::kNorm:
      return Norm(step);
    case NodeKind::kNormGrad:
      return NormGrad(step);
    case NodeKind::kLinear:
      return Linear(step);
    case NodeKind::kLinearGradInput:
      return LinearGradInput(step);
    case NodeKind::kLinearGradWeight:
      return LinearGradWeight(node);
    case NodeKind::kBiasGrad:
      return BiasGrad(node);
    case NodeKind::kRopeTable:
      return RopeTable(node);
    case NodeKind::kRope:
      return Rope(node, RopeDirection::kForward);
    case NodeKind::kRopeGrad:
      return Rope(node, RopeDirection::kInverse);
    case NodeKind::kAttention:
      return Attention(node);
    case NodeKind::kAttentionGrad:
      return AttentionGrad(node);
    case NodeKind::kAdd:
      return Add(node);
    case NodeKind::kActivation:
      return Activation(node);
    case NodeKind::kActivationGrad:
      return ActivationGrad(node);
    case NodeKind::kHeadLoss:
      return HeadLoss(node);
    case NodeKind::kHeadLogits:
      return HeadLogits(node);
  }
}

void Lowering::LowerSteps(const std::vector<Step>& steps, std::vector<ProgramOp>& ops) {
  ops_ = &ops;
  for (const Step& step : steps) {
    LowerStep(step);
    storage_.NextStep();
  }
}

Program Lowering::Run() && {
  program_.choices = fused_.choices;
  LowerSteps(fused_.prologue, program_.prologue);
  LowerSteps(fused_.forward, program_.forward);
  LowerSteps(fused_.backward, program_.backward);
  program_.buffers = std::move(storage_).TakeBuffers();
  return std::move(program_);
}

Program Lower(const SemanticGraph& graph, const LowerOptions& options) {
  return Lowering(graph, options).Run();
}

}  // namespace millrace
