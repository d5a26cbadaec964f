#include "runtime/plan/lower/fusion.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/base/id_vector.h"

namespace millrace {
namespace {

// Where values are defined and read: node positions, forward first, then backward.
struct Uses {
  explicit Uses(const SemanticGraph& graph)
      : defined(graph.values.size(), -1), readers(graph.values.size()) {
    for (const std::vector<Node>* nodes : {&graph.forward, &graph.backward})
      for (const Node& node : *nodes) {
        const int position = static_cast<int>(all.size());
        for (const ValueId input : node.inputs)
          if (input) readers[input].push_back(position);
        for (const ValueId output : node.outputs)
          if (output) defined[output] = position;
        all.push_back(&node);
      }
  }
  const std::vector<int>& ReadersOf(ValueId id) const { return readers[id]; }
  int DefinitionOf(ValueId id) const { return defined[id]; }

  std::vector<const Node*> all;
  IdVector<ValueId, int> defined;
  IdVector<ValueId, std::vector<int>> readers;  // ascending
};

class Fuser {
 public:
  Fuser(const SemanticGraph& graph, const LowerOptions& options)
      : graph_(graph),
        options_(options),
        uses_(graph),
        steps_(uses_.all.size()),
        absorbed_(uses_.all.size(), false) {}

  FusedGraph Run() && {
    for (size_t i = 0; i < steps_.size(); ++i) steps_[i].node = uses_.all[i];
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (options_.fuse_residual_norm && uses_.all[i]->kind == NodeKind::kNorm)
        FuseResidual(static_cast<int>(i));
      if (options_.fuse_residual_norm && uses_.all[i]->kind == NodeKind::kNormGrad)
        FuseBypass(static_cast<int>(i));
      if (options_.fuse_bias_gelu && uses_.all[i]->kind == NodeKind::kLinear)
        FuseGelu(static_cast<int>(i));
      if (options_.fuse_bias_gelu && uses_.all[i]->kind == NodeKind::kLinearGradInput)
        FuseGeluGrad(static_cast<int>(i));
    }
    for (const Node& node : graph_.prologue) fused_.prologue.push_back(Step{.node = &node});
    for (size_t i = 0; i < steps_.size(); ++i)
      if (!absorbed_[i])
        (i < graph_.forward.size() ? fused_.forward : fused_.backward).push_back(steps_[i]);
    return std::move(fused_);
  }

 private:
  bool IsForward(int position) const {
    return static_cast<size_t>(position) < graph_.forward.size();
  }

  void FuseResidual(int norm) {
    const ValueId sum = uses_.all[norm]->inputs[0];
    const int add = uses_.DefinitionOf(sum);
    if (add < 0 || uses_.all[add]->kind != NodeKind::kAdd || absorbed_[add] ||
        IsForward(add) != IsForward(norm))
      return;
    if (uses_.all[add]->inputs[0] == uses_.all[add]->inputs[1]) return;
    if (uses_.ReadersOf(sum).front() < norm)
      return;  // something needs the sum before the norm would form it
    steps_[norm].add = uses_.all[add];
    absorbed_[add] = true;
    fused_.choices.push_back(fmt::format("{}: forms the residual sum {} itself",
                                         uses_.all[norm]->label, uses_.all[add]->label));
  }

  void FuseBypass(int norm_grad) {
    const ValueId d_x = uses_.all[norm_grad]->outputs[0];
    const std::vector<int>& readers = uses_.ReadersOf(d_x);
    if (readers.size() != 1 || uses_.all[readers[0]]->kind != NodeKind::kAdd ||
        absorbed_[readers[0]])
      return;
    const Node& add = *uses_.all[readers[0]];
    const ValueId bypass = add.inputs[0] == d_x ? add.inputs[1] : add.inputs[0];
    if (bypass == d_x || uses_.DefinitionOf(bypass) >= norm_grad) return;
    steps_[norm_grad].add = &add;
    absorbed_[readers[0]] = true;
    fused_.choices.push_back(
        fmt::format("{}: adds the gradient that bypasses the norm", uses_.all[norm_grad]->label));
  }

  void FuseGelu(int linear) {
    const ValueId y = uses_.all[linear]->outputs[0];
    const std::vector<int>& readers = uses_.ReadersOf(y);
    if (readers.empty() || IsForward(readers[0]) != IsForward(linear)) return;
    const Node& activation = *uses_.all[readers[0]];
    if (activation.kind != NodeKind::kActivation ||
        activation.attrs.activation != ActivationKind::kGelu)
      return;
    steps_[linear].activation = &activation;
    absorbed_[readers[0]] = true;
    fused_.choices.push_back(
        fmt::format("{}: GELU in the matmul's epilogue{}", uses_.all[linear]->label,
                    readers.size() > 1 ? ", its input kept for the backward" : ""));
  }

  void FuseGeluGrad(int linear_grad) {
    const std::vector<int>& readers = uses_.ReadersOf(uses_.all[linear_grad]->outputs[0]);
    if (readers.size() != 1) return;
    const Node& grad = *uses_.all[readers[0]];
    if (grad.kind != NodeKind::kActivationGrad || grad.attrs.activation != ActivationKind::kGelu)
      return;
    if (uses_.DefinitionOf(grad.inputs[0]) >= linear_grad) return;
    steps_[linear_grad].activation = &grad;
    absorbed_[readers[0]] = true;
    fused_.choices.push_back(
        fmt::format("{}: GELU's gradient in the matmul's epilogue", uses_.all[linear_grad]->label));
  }

  const SemanticGraph& graph_;
  const LowerOptions& options_;
  Uses uses_;
  std::vector<Step> steps_;     // by node position
  std::vector<char> absorbed_;  // part of another node's step
  FusedGraph fused_;
};

}  // namespace

std::vector<ValueId> ReadsOf(const Step& step) {
  std::vector<ValueId> reads;
  const auto add = [&](ValueId id, ValueId inside) {
    if (id && id != inside) reads.push_back(id);
  };
  const bool norm = step.node->kind == NodeKind::kNorm;
  const ValueId inside = !step.add ? ValueId{}
                         : norm    ? step.add->outputs[0]
                                   : step.node->outputs[0];
  for (const ValueId input : step.node->inputs) add(input, inside);
  if (step.node->kind == NodeKind::kLinearGradInput && step.activation)
    add(step.activation->inputs[0], {});
  if (step.add)
    for (const ValueId input : step.add->inputs) add(input, inside);
  return reads;
}

FusedGraph Fuse(const SemanticGraph& graph, const LowerOptions& options) {
  return Fuser(graph, options).Run();
}

}  // namespace millrace
