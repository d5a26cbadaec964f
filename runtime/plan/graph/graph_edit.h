// What the forward builder and the gradients share while a graph is still being written.
#pragma once

#include <utility>

#include "runtime/plan/graph/semantic_graph.h"

namespace millrace {

inline ValueId AddValue(SemanticGraph& graph, Value value) {
  const ValueId id = graph.value_ids().last;
  graph.values.push_back(std::move(value));
  return id;
}

// The one gradient value of the parameter that `param` holds: f32, the parameter's stored shape.
// ParamGradOf looks through all values and adds it if it is not there. AddParamGrad just adds it:
// for who knows which parameters have one.
ValueId ParamGradOf(SemanticGraph& graph, ValueId param);
ValueId AddParamGrad(SemanticGraph& graph, ValueId param);

}  // namespace millrace
