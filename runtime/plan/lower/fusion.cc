#include "runtime/plan/lower/fusion.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/base/error.h"

namespace millrace {

Fuser::Fuser(const SemanticGraph& graph, const LowerOptions& options)
    : graph_(graph),
      options_(options),
      defined_(graph.values.size(), -1),
      readers_(graph.values.size()) {
  for (const std::vector<Node>* nodes : {&graph.forward, &graph.backward})
    for (const Node& node : *nodes) {
      const int position = static_cast<int>(nodes_.size());
      for (const ValueId input : node.inputs)
        if (input) readers_[input].push_back(position);
      for (const ValueId output : node.outputs)
        if (output) defined_[output] = position;
      nodes_.push_back(&node);
      steps_.push_back(Step{.node = &node});
    }
  absorbed_.resize(nodes_.size(), false);
}

void Fuser::Absorb(int position, int absorbed, const std::string& why) {
  MR_CHECK(position != absorbed && !absorbed_[static_cast<size_t>(absorbed)] &&
               steps_[static_cast<size_t>(position)].absorbed == nullptr,
           "{}: absorbs {} a second time", node(position).label, node(absorbed).label);
  steps_[static_cast<size_t>(position)].absorbed = &node(absorbed);
  absorbed_[static_cast<size_t>(absorbed)] = true;
  fused_.choices.push_back(fmt::format("{}: {}", node(position).label, why));
}

FusedGraph Fuser::Run() && {
  for (size_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i]->kind->fuse != nullptr) nodes_[i]->kind->fuse(*this, static_cast<int>(i));
  for (const Node& node : graph_.prologue) fused_.prologue.push_back(Step{.node = &node});
  for (size_t i = 0; i < steps_.size(); ++i)
    if (!absorbed_[i])
      (i < graph_.forward.size() ? fused_.forward : fused_.backward).push_back(steps_[i]);
  return std::move(fused_);
}

std::vector<ValueId> ReadsOf(const Step& step) {
  std::vector<ValueId> reads;
  const auto inside = [&](ValueId id) {
    for (const Node* node : {step.node, step.absorbed})
      if (node != nullptr &&
          std::find(node->outputs.begin(), node->outputs.end(), id) != node->outputs.end())
        return true;
    return false;
  };
  for (const Node* node : {step.node, step.absorbed}) {
    if (node == nullptr) continue;
    for (const ValueId input : node->inputs)
      if (input && !inside(input)) reads.push_back(input);
  }
  return reads;
}

FusedGraph Fuse(const SemanticGraph& graph, const LowerOptions& options) {
  return Fuser(graph, options).Run();
}

}  // namespace millrace
