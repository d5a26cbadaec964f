// Which nodes of the semantic graph become one kernel op. The first half of Lower: values stay
// values, buffers come after.
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/graph/semantic_graph.h"
#include "runtime/plan/lower/lower.h"

namespace millrace {

// One kernel op, or for kHeadLoss and kHeadLogits one run of them. Nodes belong to
// the graph that was fused.
struct Step {
  const Node* node = nullptr;
  // kNorm: the residual sum it forms first; kNormGrad: the sum it adds its d_x into.
  const Node* add = nullptr;
  // kLinear: the GELU of its result; kLinearGradInput: that GELU's gradient.
  const Node* activation = nullptr;
};

struct FusedGraph {
  std::vector<Step> prologue, forward, backward;
  std::vector<std::string> choices;
};

// Values that the step reads and that another step has written (sums formed inside the step
// excluded), in order, absent ones left out.
std::vector<ValueId> ReadsOf(const Step& step);

// Pure. A kAdd moves to the norm that reads it when nothing reads the sum in between; a norm's
// gradient takes over the kAdd of its d_x when that is the only reader and the other term exists
// already; a kLinear takes over the GELU that follows, and the gradient of a kLinear's input the
// gradient of the GELU before it.
FusedGraph Fuse(const SemanticGraph& graph, const LowerOptions& options);

}  // namespace millrace
