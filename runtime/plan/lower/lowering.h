// The second half of Lower, as the lowering of each kind of node (NodeDef::lower) sees it: which
// views hold its values, and where its kernel ops go.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/id_vector.h"
#include "runtime/plan/lower/fusion.h"
#include "runtime/plan/lower/lower.h"
#include "runtime/plan/lower/quantized.h"
#include "runtime/plan/lower/value_storage.h"

namespace millrace {

// The last two dims swapped.
View Transposed(View view);
// Rows [begin, begin + rows) of a 2-D view.
View Rows(View view, int64_t begin, int64_t rows);
// The elements of a dense view as one dim, as communicators take them; absent stays absent.
View InOneRow(View view);

class Lowering {
 public:
  Lowering(const SemanticGraph& graph, const LowerOptions& options)
      : graph_(graph),
        options_(options),
        fused_(Fuse(graph, options)),
        storage_(graph, fused_),
        magnitudes_(graph) {}
  Program Run() &&;

  const SemanticGraph& graph() const { return graph_; }
  const LowerOptions& options() const { return options_; }
  ValueStorage& storage() { return storage_; }
  QuantizedViews& quantized() { return quantized_; }
  Magnitudes& magnitudes() { return magnitudes_; }
  // Gradient nodes that have the value among their inputs, in their order.
  const std::vector<const Node*>& BackwardReadersOf(ValueId value);

  // Appends an op of `node`. Error(kConfig) naming it when the backend cannot run it.
  void Push(KernelOp op, const Node& node, const std::string& suffix = "");

  ProgramOp& last() { return ops_->back(); }  // that was pushed
  void DropLast() { ops_->pop_back(); }

  // A line of Program::choices.
  void Choose(std::string choice) { program_.choices.push_back(std::move(choice)); }

 private:
  void LowerSteps(const std::vector<Step>& steps, std::vector<ProgramOp>& ops);

  const SemanticGraph& graph_;
  const LowerOptions& options_;
  FusedGraph fused_;
  ValueStorage storage_;
  QuantizedViews quantized_;
  Magnitudes magnitudes_;
  IdVector<ValueId, std::vector<const Node*>> backward_readers_;  // empty: nobody has asked
  Program program_;
  std::vector<ProgramOp>* ops_ = nullptr;  // the section being written
};

}  // namespace millrace
