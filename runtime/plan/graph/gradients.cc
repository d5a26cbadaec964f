// Gradients at plan time: one rule per node kind, applied to the forward in reverse;
// and recomputation, which emits forward nodes again where a gradient asks for a value
// that the policy did not save.
#include <fmt/core.h>

#include <array>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/id_vector.h"
#include "runtime/plan/graph/graph_edit.h"
#include "runtime/plan/graph/semantic_graph.h"

namespace millrace {
namespace {

class Differentiator;
using Rule = void (*)(Differentiator&, const Node& forward);

class Differentiator {
 public:
  Differentiator(SemanticGraph graph, const std::vector<UnitRecompute>& recompute);
  SemanticGraph Run() &&;

  // --- for the rules ---
  const Value& value(ValueId id) const { return graph_.value(id); }
  ValueId GradientOf(ValueId id) const { return At(gradients_, id); }
  bool Differentiable(ValueId id) const { return id && At(differentiable_, id); }
  // The one gradient value of the parameter that `param` holds; created at the first call.
  ValueId ParamGrad(ValueId param);
  // A gradient of `of`, to be written by the node that is emitted next.
  ValueId NewGradient(ValueId of);
  // Adds `contribution` to the gradient of `of`.
  void Contribute(ValueId of, ValueId contribution, const Node& forward);
  // Appends a gradient node of `forward`; values of the forward are replaced by recomputed ones
  // where the policy asks for it.
  void Emit(NodeKind kind, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
            std::vector<ValueId> grads, const Node& forward, const char* suffix);

 private:
  template <class T>
  static const T& At(const IdVector<ValueId, T>& table, ValueId id) {
    static const T absent{};
    return table.Has(id) ? table[id] : absent;
  }
  ValueId& ParamGradSlot(ParamId param);
  bool IsRecomputed(const Node& node) const;
  ValueId ForUseIn(UnitId unit, ValueId id);
  void FindDifferentiable();

  SemanticGraph graph_;
  std::vector<UnitRecompute> recompute_;  // by unit
  // By forward value.
  IdVector<ValueId, const Node*> producers_;  // null: no forward node
  IdVector<ValueId, char> differentiable_;    // depends on a parameter
  IdVector<ValueId, ValueId> gradients_;      // as summed so far
  IdVector<ValueId, int> contributions_;
  IdVector<ValueId, ValueId> recomputed_;  // its recomputed twin
  // Once there is one.
  IdVector<ParamId, ValueId> param_grads_;
};

Differentiator::Differentiator(SemanticGraph graph, const std::vector<UnitRecompute>& recompute)
    : graph_(std::move(graph)),
      recompute_(recompute),
      producers_(graph_.values.size()),
      differentiable_(graph_.values.size()),
      gradients_(graph_.values.size()),
      contributions_(graph_.values.size()),
      recomputed_(graph_.values.size()) {
  MR_CHECK_EQ(recompute_.size(), graph_.unit_names.size(),
              "recomputation by unit against the units");
  MR_CHECK(graph_.backward.empty(), "the graph has {} backward nodes already",
           graph_.backward.size());
  for (const Node& node : graph_.forward)
    for (const ValueId output : node.outputs)
      if (output) producers_[output] = &node;
  for (const ValueId id : producers_.ids())
    if (value(id).role == ValueRole::kParamGrad)  // the head's
      ParamGradSlot(value(id).param) = id;
  FindDifferentiable();
}

ValueId& Differentiator::ParamGradSlot(ParamId param) {
  while (!param_grads_.Has(param)) param_grads_.push_back({});
  return param_grads_[param];
}

ValueId Differentiator::ParamGrad(ValueId param) {
  if (!param) return {};
  ValueId& grad = ParamGradSlot(value(param).param);
  if (!grad) grad = AddParamGrad(graph_, param);
  return grad;
}

void Differentiator::FindDifferentiable() {
  for (const ValueId id : differentiable_.ids())
    differentiable_[id] = value(id).role == ValueRole::kParam;
  for (const Node& node : graph_.forward) {
    bool depends = false;
    for (const ValueId input : node.inputs) depends |= Differentiable(input);
    for (const ValueId output : node.outputs)
      if (output) differentiable_[output] = depends;
  }
}

ValueId Differentiator::NewGradient(ValueId of) {
  const Value source = value(of);
  const int nth = ++contributions_[of];
  return AddValue(graph_, Value{.name = nth == 1 ? fmt::format("d({})", source.name)
                                                 : fmt::format("d({})#{}", source.name, nth),
                                .role = ValueRole::kActivation,
                                .dtype = source.dtype,
                                .dims = source.dims,
                                .param = {}});
}

void Differentiator::Contribute(ValueId of, ValueId contribution, const Node& forward) {
  if (!Differentiable(of)) return;
  ValueId& gradient = gradients_[of];
  if (!gradient) {
    gradient = contribution;
    if (contributions_[of] == 0) contributions_[of] = 1;
    return;
  }
  const ValueId sum = AddValue(graph_, Value{.name = value(contribution).name + "+",
                                             .role = ValueRole::kActivation,
                                             .dtype = value(of).dtype,
                                             .dims = value(of).dims,
                                             .param = {}});
  Emit(NodeKind::kAdd, {gradient, contribution}, {sum}, {}, forward, ":sum");
  gradient = sum;
}

bool Differentiator::IsRecomputed(const Node& node) const {
  const auto unit = static_cast<size_t>(node.unit.value);
  if (!graph_.IsBlock(unit)) return false;
  if (node.kind == NodeKind::kNorm) return recompute_[unit].norms;
  if (node.kind == NodeKind::kActivation) return recompute_[unit].activations;
  return recompute_[unit].others;
}

// What a node of `unit` in the backward reads for the forward value `id`. Recursion ends at values
// that are saved: those of other units, and those whose producer the policy leaves alone.
ValueId Differentiator::ForUseIn(UnitId unit, ValueId id) {
  if (!producers_.Has(id)) return id;  // absent, or of the backward
  const Node* producer = producers_[id];
  if (!producer || producer->unit != unit || !IsRecomputed(*producer)) return id;
  if (const ValueId twin = recomputed_[id]) return twin;
  Node again = *producer;
  again.recomputed = true;
  again.label += ":again";
  for (ValueId& input : again.inputs) input = ForUseIn(unit, input);
  for (ValueId& output : again.outputs) {
    if (!output) continue;
    Value twin = value(output);
    twin.name += "'";
    const ValueId original = output;
    output = AddValue(graph_, std::move(twin));
    recomputed_[original] = output;
  }
  graph_.backward.push_back(std::move(again));
  return recomputed_[id];
}

void Differentiator::Emit(NodeKind kind, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
                          std::vector<ValueId> grads, const Node& forward, const char* suffix) {
  for (ValueId& input : inputs) input = ForUseIn(forward.unit, input);
  graph_.backward.push_back(Node{.kind = kind,
                                 .inputs = std::move(inputs),
                                 .outputs = std::move(outputs),
                                 .grads = std::move(grads),
                                 .attrs = forward.attrs,
                                 .unit = forward.unit,
                                 .label = forward.label + suffix});
}

// --- Rules. y is the node's first output, d_y its gradient. A weight gradient comes before the
// input gradient: it is the last reader of the saved input, and the sooner it lands the sooner its
// unit's reduction can begin.

void EmbeddingRule(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  if (n.inputs[2])  // rows beyond the sequence would stay undefined
    MR_CHECK_EQ(
        d.value(n.inputs[2]).dims[0], d.value(n.inputs[0]).dims[1],
        "node {}: rows of the position table against the sequence length: equal for training",
        n.label);
  d.Emit(NodeKind::kEmbeddingGrad, {n.inputs[0], d_y}, {},
         {d.ParamGrad(n.inputs[1]), d.ParamGrad(n.inputs[2])}, n, ":grad");
}

void NormRule(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  const ValueId d_x = d.NewGradient(n.inputs[0]);
  d.Emit(NodeKind::kNormGrad, {d_y, n.inputs[0], n.inputs[1], n.outputs[1], n.outputs[2]}, {d_x},
         {d.ParamGrad(n.inputs[1]), d.ParamGrad(n.inputs[2])}, n, ":grad");
  d.Contribute(n.inputs[0], d_x, n);
}

void LinearRule(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  const ValueId x = n.inputs[0], weight = n.inputs[1], bias = n.inputs[2];
  if (bias) d.Emit(NodeKind::kBiasGrad, {d_y}, {}, {d.ParamGrad(bias)}, n, ":d_bias");
  d.Emit(NodeKind::kLinearGradWeight, {d_y, x}, {}, {d.ParamGrad(weight)}, n, ":d_weight");
  if (!d.Differentiable(x)) return;
  const ValueId d_x = d.NewGradient(x);
  d.Emit(NodeKind::kLinearGradInput, {d_y, weight}, {d_x}, {}, n, ":d_input");
  d.Contribute(x, d_x, n);
}

// The rotation is orthogonal: its gradient is the inverse rotation and needs the table only.
void RopeRule(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  const ValueId d_qkv = d.NewGradient(n.inputs[0]);
  d.Emit(NodeKind::kRopeGrad, {d_y, n.inputs[1]}, {d_qkv}, {}, n, ":grad");
  d.Contribute(n.inputs[0], d_qkv, n);
}

void AttentionRule(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  const ValueId d_qkv = d.NewGradient(n.inputs[0]);
  d.Emit(NodeKind::kAttentionGrad, {n.inputs[0], n.outputs[0], n.outputs[1], d_y}, {d_qkv}, {}, n,
         ":grad");
  d.Contribute(n.inputs[0], d_qkv, n);
}

// Both terms have the sum's own gradient: no node, the same value.
void AddRule(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  d.Contribute(n.inputs[1], d_y, n);
  d.Contribute(n.inputs[0], d_y, n);
}

void ActivationRule(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  const ValueId d_x = d.NewGradient(n.inputs[0]);
  d.Emit(NodeKind::kActivationGrad, {n.inputs[0], d_y}, {d_x}, {}, n, ":grad");
  d.Contribute(n.inputs[0], d_x, n);
}

// Everything was computed in the forward, while the logits existed.
void HeadLossRule(Differentiator& d, const Node& n) {
  if (n.outputs[1]) d.Contribute(n.inputs[0], n.outputs[1], n);
}

struct RuleEntry {
  NodeKind kind;
  Rule rule;
};
constexpr std::array kRules = {
    RuleEntry{NodeKind::kEmbedding, EmbeddingRule},   RuleEntry{NodeKind::kNorm, NormRule},
    RuleEntry{NodeKind::kLinear, LinearRule},         RuleEntry{NodeKind::kRope, RopeRule},
    RuleEntry{NodeKind::kAttention, AttentionRule},   RuleEntry{NodeKind::kAdd, AddRule},
    RuleEntry{NodeKind::kActivation, ActivationRule}, RuleEntry{NodeKind::kHeadLoss, HeadLossRule},
};

Rule RuleFor(const Node& node) {
  for (const RuleEntry& entry : kRules)
    if (entry.kind == node.kind) return entry.rule;
  MR_FAIL("node {}: {} has no gradient", node.label, Name(node.kind));
}

SemanticGraph Differentiator::Run() && {
  bool trains = false;
  for (const Node& node : graph_.forward)
    trains |= node.kind == NodeKind::kHeadLoss && node.outputs[1];
  MR_CHECK(trains, "gradients need a forward that ends in a training loss");
  for (size_t i = graph_.forward.size(); i-- > 0;)
    RuleFor(graph_.forward[i])(*this, graph_.forward[i]);
  return std::move(graph_);
}

}  // namespace

std::vector<UnitRecompute> RecomputeOf(const SemanticGraph& graph, Recompute policy) {
  MR_CHECK(policy != Recompute::kAuto, "recompute auto is a search, not a choice");
  std::vector<UnitRecompute> by_unit(graph.unit_names.size());
  for (size_t u = 0; u < by_unit.size(); ++u)
    if (policy != Recompute::kNone && graph.IsBlock(u))
      by_unit[u] = {.norms = true, .activations = true, .others = policy == Recompute::kBlock};
  return by_unit;
}

SemanticGraph AddGradients(SemanticGraph graph, const std::vector<UnitRecompute>& by_unit) {
  return Differentiator(std::move(graph), by_unit).Run();
}

SemanticGraph AddGradients(SemanticGraph graph, Recompute policy) {
  const std::vector<UnitRecompute> by_unit = RecomputeOf(graph, policy);
  return AddGradients(std::move(graph), by_unit);
}

}  // namespace millrace
