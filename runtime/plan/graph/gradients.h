// Gradients at plan time: each node's rule, applied to the forward in reverse; and recomputation,
// which emits forward nodes again where a gradient asks for a value that the policy did not save.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/id_vector.h"
#include "runtime/base/policies.h"
#include "runtime/plan/graph/semantic_graph.h"

namespace millrace {

// What a unit's backward computes again instead of reading what its forward saved.
struct UnitRecompute {
  std::vector<const NodeDef*> cheap;      // these kinds, of those that are cheap
  bool dear = false;                      // all that is dear
  std::vector<const NodeDef*> kept = {};  // and not what these exchanges bring
  bool operator==(const UnitRecompute&) const = default;
};

// The cheap kinds that block units have, by name.
std::vector<const NodeDef*> CheapKinds(const SemanticGraph& graph);

// By UnitId: the same for every block unit, nothing for the others. Error(kInternal): kAuto, which
// ChooseRecompute (recompute.h) decides.
std::vector<UnitRecompute> RecomputeOf(const SemanticGraph& graph, Recompute policy);

// Of each value a rank has the gradient of what the loss of all ranks is by its own copy: copies on
// several ranks are several values, whose gradients are summed where the value was gathered from
// (nodes/exchange.h), or, of a parameter, over every axis that does not split it.
//
// Appends the gradient of every parameter that the loss depends on to `backward`, by the rule of
// each node in reverse order. A value with several consumers has its gradients summed as they
// arrive. A loss has already contributed to what it reads in the forward. A parameter that no node
// uses gets no gradient value: the planner keeps its gradient zero. Of one that is not trained only
// what a node forms together with gradients that are needed is formed, and nothing of what it alone
// depends on.
//
// Values needed from the forward are either saved or, by policy, recomputed: the forward nodes of
// the same block unit are emitted again (recomputed = true), each right before the first gradient
// node that needs it, and only if one does. Values that come from another unit are always saved;
// embedding and head are never recomputed. Bits do not depend on the policy.
// Errors  A graph without a training loss, or with a backward already; `by_unit` not of one entry
//         per unit: Error(kInternal).
SemanticGraph AddGradients(SemanticGraph graph, const std::vector<UnitRecompute>& by_unit);
SemanticGraph AddGradients(SemanticGraph graph, Recompute policy);

// What rules see. Each value has a gradient of its own, or none: a rule asks for that of each
// output and reads those that there are.
class Differentiator {
 public:
  Differentiator(SemanticGraph graph, const std::vector<UnitRecompute>& recompute);
  SemanticGraph Run() &&;

  const SemanticGraph& graph() const { return graph_; }
  const Value& value(ValueId id) const { return graph_.value(id); }
  // As summed so far: complete when the rule of the node that has written the value runs. Absent
  // when the loss does not depend on the value.
  ValueId GradientOf(ValueId id) const { return At(gradients_, id); }
  // Whether the value depends on a parameter that is trained.
  bool Differentiable(ValueId id) const { return id && At(differentiable_, id); }
  // The one gradient value of the parameter that `param` holds; created at the first call.
  ValueId ParamGrad(ValueId param);
  // A gradient of `of`, to be written by the node that is emitted next; rules hand it to Contribute
  // (nodes/add.h).
  ValueId NewGradient(ValueId of);
  // The same in a dtype that is not the value's: of f32 statistics that products of another follow.
  ValueId NewGradient(ValueId of, DType dtype);
  // A value that only gradients of `forward` read.
  ValueId NewTemporary(const std::string& name, ValueId like);
  void SetGradient(ValueId of, ValueId gradient);
  // Whether a node of class kExchange has written the value.
  bool IsExchanged(ValueId id) const;
  // Appends a gradient node of `forward`; values of the forward are replaced by recomputed ones
  // where the policy asks for it.
  void Emit(const NodeDef& kind, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
            std::vector<ValueId> grads, const Node& forward, const std::string& suffix);

  // The same, put off until the rule of the next forward node of the kind `beside` has emitted what
  // it does, or else to the end: work that fills the wait for an exchange. What it reads is
  // computed again here, if at all.
  void EmitBeside(const NodeDef& beside, const NodeDef& kind, std::vector<ValueId> inputs,
                  std::vector<ValueId> grads, const Node& forward, const std::string& suffix);

 private:
  struct Later {
    const NodeDef* beside;
    Node node;
  };
  void EmitLater(const NodeDef* beside);  // null: all

  template <class T>
  static const T& At(const IdVector<ValueId, T>& table, ValueId id) {
    static const T absent{};
    return table.Has(id) ? table[id] : absent;
  }
  ValueId& ParamGradSlot(ParamId param);
  bool IsNeeded(const std::vector<ValueId>& outputs, const std::vector<ValueId>& grads) const;
  bool IsRecomputed(const Node& node) const;
  ValueId ForUseIn(UnitId unit, ValueId id);
  void FindDifferentiable();
  void ApplyRule(const Node& node);

  SemanticGraph graph_;
  std::vector<UnitRecompute> recompute_;  // by unit
  // By forward value.
  IdVector<ValueId, const Node*> producers_;  // null: no forward node
  IdVector<ValueId, char> differentiable_;
  IdVector<ValueId, ValueId> gradients_;
  IdVector<ValueId, int> contributions_;
  IdVector<ValueId, ValueId> recomputed_;  // its recomputed twin
  std::vector<Later> later_;
  bool trains_ = false;  // some value has a gradient
  // Once there is one.
  IdVector<ParamId, ValueId> param_grads_;
};

}  // namespace millrace
