// Which nodes of the semantic graph become one kernel op. The first half of Lower: values stay
// values, buffers come after. Each kind says what it absorbs (NodeDef::fuse), in order of the
// nodes.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/id_vector.h"
#include "runtime/plan/graph/semantic_graph.h"
#include "runtime/plan/lower/lower.h"

namespace millrace {

// What one call of NodeDef::lower turns into kernel ops. Nodes belong to the graph that was fused.
struct Step {
  const Node* node = nullptr;
  const Node* absorbed = nullptr;  // computed in the same step, before or after the node's own
};

struct FusedGraph {
  std::vector<Step> prologue, forward, backward;
  std::vector<std::string> choices;
};

// Values that the step reads and that another step has written, absent ones left out.
std::vector<ValueId> ReadsOf(const Step& step);

// Pure.
FusedGraph Fuse(const SemanticGraph& graph, const LowerOptions& options);

// What fuse functions see. A position counts the nodes, forward first, then backward.
class Fuser {
 public:
  Fuser(const SemanticGraph& graph, const LowerOptions& options);
  FusedGraph Run() &&;

  const LowerOptions& options() const { return options_; }
  const Node& node(int position) const { return *nodes_[static_cast<size_t>(position)]; }
  bool IsForward(int position) const {
    return static_cast<size_t>(position) < graph_.forward.size();
  }
  // Where a value is read, ascending; where it is defined, -1 for parameters and inputs.
  const std::vector<int>& ReadersOf(ValueId id) const { return readers_[id]; }
  int DefinitionOf(ValueId id) const { return defined_[id]; }
  // A node that has been absorbed or has absorbed another is not free.
  bool Free(int position) const {
    return !absorbed_[static_cast<size_t>(position)] &&
           steps_[static_cast<size_t>(position)].absorbed == nullptr;
  }
  // `why` follows the node's label in FusedGraph::choices.
  void Absorb(int position, int absorbed, const std::string& why);

 private:
  const SemanticGraph& graph_;
  const LowerOptions& options_;
  std::vector<const Node*> nodes_;  // by position
  std::vector<Step> steps_;         // likewise
  std::vector<char> absorbed_;      // likewise: part of another node's step
  IdVector<ValueId, int> defined_;
  IdVector<ValueId, std::vector<int>> readers_;
  FusedGraph fused_;
};

}  // namespace millrace
