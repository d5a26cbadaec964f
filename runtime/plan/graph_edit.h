// What the forward builder and the gradients share while a graph is still being written.
#pragma once

#include <utility>

#include "runtime/plan/semantic_graph.h"

namespace millrace {

inline ValueId AddValue(SemanticGraph& graph, Value value) {
  graph.values.push_back(std::move(value));
  return ValueId{static_cast<int32_t>(graph.values.size()) - 1};
}

// The one gradient value of the parameter that `param` holds; created at the first call. f32, the
// parameter's stored shape.
ValueId ParamGradOf(SemanticGraph& graph, ValueId param);

}  // namespace millrace
