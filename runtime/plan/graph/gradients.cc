#include "runtime/plan/graph/gradients.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/plan/graph/graph_edit.h"

namespace millrace {

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
    differentiable_[id] = value(id).role == ValueRole::kParam && value(id).trained;
  for (const Node& node : graph_.forward) {
    bool depends = false;
    for (const ValueId input : node.inputs) depends |= Differentiable(input);
    for (const ValueId output : node.outputs)
      if (output) differentiable_[output] = depends;
  }
}

ValueId Differentiator::NewTemporary(const std::string& name, ValueId like) {
  const Value source = value(like);
  return AddValue(graph_, Value{.name = name,
                                .role = ValueRole::kActivation,
                                .dtype = source.dtype,
                                .dims = source.dims,
                                .placement = {source.placement.cut, {}},
                                .parts = source.parts,
                                .param = {}});
}

ValueId Differentiator::NewGradient(ValueId of) {
  const int nth = ++contributions_[of];
  return NewTemporary(nth == 1 ? fmt::format("d({})", value(of).name)
                               : fmt::format("d({})#{}", value(of).name, nth),
                      of);
}

ValueId Differentiator::NewGradient(ValueId of, DType dtype) {
  const ValueId gradient = NewGradient(of);
  graph_.value(gradient).dtype = dtype;
  return gradient;
}

void Differentiator::SetGradient(ValueId of, ValueId gradient) {
  gradients_[of] = gradient;
  contributions_[of] = std::max(contributions_[of], 1);
  trains_ = true;
}

bool Differentiator::IsExchanged(ValueId id) const {
  const Node* producer = At(producers_, id);
  return producer != nullptr && producer->kind->recompute == RecomputeClass::kExchange;
}

bool Differentiator::IsRecomputed(const Node& node) const {
  const auto unit = static_cast<size_t>(node.unit.value);
  if (!graph_.IsBlock(unit)) return false;
  const UnitRecompute& again = recompute_[unit];
  switch (node.kind->recompute) {
    case RecomputeClass::kCheap:
      return std::find(again.cheap.begin(), again.cheap.end(), node.kind) != again.cheap.end();
    case RecomputeClass::kDear:
      return again.dear;
    case RecomputeClass::kExchange:
      return std::find(again.kept.begin(), again.kept.end(), node.kind) == again.kept.end();
    case RecomputeClass::kNever:
      return false;
  }
  return false;
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

// Whether a gradient node does more than to form gradients of parameters that are not trained. One
// that has none at all is there for what else it writes: a router's tallies.
bool Differentiator::IsNeeded(const std::vector<ValueId>& outputs,
                              const std::vector<ValueId>& grads) const {
  const auto is_trained = [&](ValueId grad) { return value(grad).trained; };
  std::vector<ValueId> formed;
  std::copy_if(grads.begin(), grads.end(), std::back_inserter(formed),
               [](ValueId grad) { return static_cast<bool>(grad); });
  return !outputs.empty() || formed.empty() ||
         std::any_of(formed.begin(), formed.end(), is_trained);
}

void Differentiator::Emit(const NodeDef& kind, std::vector<ValueId> inputs,
                          std::vector<ValueId> outputs, std::vector<ValueId> grads,
                          const Node& forward, const std::string& suffix) {
  if (!IsNeeded(outputs, grads)) return;
  for (ValueId& input : inputs) input = ForUseIn(forward.unit, input);
  graph_.backward.push_back(Node{.kind = &kind,
                                 .inputs = std::move(inputs),
                                 .outputs = std::move(outputs),
                                 .grads = std::move(grads),
                                 .attrs = forward.attrs,
                                 .unit = forward.unit,
                                 .label = forward.label + suffix});
}

void Differentiator::EmitBeside(const NodeDef& beside, const NodeDef& kind,
                                std::vector<ValueId> inputs, std::vector<ValueId> grads,
                                const Node& forward, const std::string& suffix) {
  if (!IsNeeded({}, grads)) return;
  for (ValueId& input : inputs) input = ForUseIn(forward.unit, input);
  later_.push_back({&beside, Node{.kind = &kind,
                                  .inputs = std::move(inputs),
                                  .outputs = {},
                                  .grads = std::move(grads),
                                  .attrs = forward.attrs,
                                  .unit = forward.unit,
                                  .label = forward.label + suffix}});
}

void Differentiator::EmitLater(const NodeDef* beside) {
  std::vector<Later> kept;
  for (Later& later : later_)
    if (beside == nullptr || later.beside == beside)
      graph_.backward.push_back(std::move(later.node));
    else
      kept.push_back(std::move(later));
  later_ = std::move(kept);
}

void Differentiator::ApplyRule(const Node& node) {
  if (node.kind->gradient != nullptr) return node.kind->gradient(*this, node);
  for (const ValueId output : node.outputs)
    MR_CHECK(!GradientOf(output), "node {}: {} has no gradient", node.label, node.kind->name);
}

SemanticGraph Differentiator::Run() && {
  for (size_t i = graph_.forward.size(); i-- > 0;) {
    ApplyRule(graph_.forward[i]);
    EmitLater(graph_.forward[i].kind);
  }
  EmitLater(nullptr);
  MR_CHECK(trains_, "gradients need a forward that ends in a training loss");
  const auto heads = std::count_if(graph_.values.begin(), graph_.values.end(),
                                   [](const Value& v) { return v.role == ValueRole::kLoss; });
  MR_CHECK_EQ(heads, std::ssize(graph_.losses), "losses of a forward that trains");
  return std::move(graph_);
}

std::vector<const NodeDef*> CheapKinds(const SemanticGraph& graph) {
  std::vector<const NodeDef*> kinds;
  for (const Node& node : graph.forward)
    if (node.kind->recompute == RecomputeClass::kCheap && graph.IsBlock(node.unit) &&
        std::find(kinds.begin(), kinds.end(), node.kind) == kinds.end())
      kinds.push_back(node.kind);
  std::sort(kinds.begin(), kinds.end(),
            [](const NodeDef* a, const NodeDef* b) { return a->name < b->name; });
  return kinds;
}

std::vector<UnitRecompute> RecomputeOf(const SemanticGraph& graph, Recompute policy) {
  MR_CHECK(policy != Recompute::kAuto, "recompute auto is a search, not a choice");
  std::vector<UnitRecompute> by_unit(graph.unit_names.size());
  if (policy == Recompute::kNone) return by_unit;
  const std::vector<const NodeDef*> cheap = CheapKinds(graph);
  for (size_t u = 0; u < by_unit.size(); ++u)
    if (graph.IsBlock(u)) by_unit[u] = {.cheap = cheap, .dear = policy == Recompute::kBlock};
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
