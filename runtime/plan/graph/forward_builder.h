// Builds the forward of one microbatch. Models emit nodes by the functions of runtime/plan/nodes
// (Linear, Norm, ...) or of their own; those take values, parameters and checks from here.
//
// Errors  Error(kInternal) naming the node.
#pragma once

#include <any>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/plan/graph/semantic_graph.h"

namespace millrace {

// How a forward ends.
// kLogits: of one row of whole sequences; kNextLogits: of the last rows of a graph with caches;
// kTokenLosses: the terms of the first loss alone, one by one; kTokenScores: and the likeliest
// token of each row.
enum class HeadMode { kTrainLoss, kEvalLoss, kLogits, kNextLogits, kTokenLosses, kTokenScores };

class ForwardBuilder {
 public:
  // `shape`: of one data rank, which ranks along the mesh's context axis share: T is divided by
  // twice their number, else Error(kConfig).
  // `norm_params` is the gather encoding of norm parameters; all others, and activations, have
  // dtype `compute`. `mesh`: of the ranks that split parameters and rows, by one rank each: nothing
  // is split.
  ForwardBuilder(const ModelSpec& spec, BatchShape shape, DType compute, DType norm_params,
                 const Mesh& mesh = {});
  ForwardBuilder(const ForwardBuilder&) = delete;
  ForwardBuilder& operator=(const ForwardBuilder&) = delete;

  // Rows are those of sequences that keep caches: `shape` was {1, rows}.
  void KeepCaches(const CacheShape& cache);

  void BeginUnit(const std::string& unit_name);  // later nodes belong to this unit
  void EncodeLinears(LinearEncoding encoding) { linears_ = encoding; }    // of block units
  void SetDocuments(ValueId documents) { graph_.documents = documents; }  // of later nodes
  SemanticGraph Finish() &&;

  // --- For what emits a node called `label` ---

  const SemanticGraph& graph() const { return graph_; }
  const Value& value(ValueId id) const { return graph_.value(id); }
  BatchShape shape() const { return graph_.shape; }  // of this rank
  const Mesh& mesh() const { return graph_.mesh; }
  // Null: rows are whole sequences.
  const CacheShape* cache() const { return graph_.cache ? &*graph_.cache : nullptr; }
  // A state of a graph with caches, the same for each call with its name. kHostState or kCache.
  ValueId State(const std::string& name, ValueRole role, DType dtype, std::vector<int64_t> dims);
  DType compute() const { return compute_; }
  // Of linears in the unit begun last.
  LinearEncoding linears() const {
    const bool block = graph_.IsBlock(unit_);
    return block ? linears_ : LinearEncoding::kCompute;
  }
  // Between blocks a rank has its part of the microbatch's B*T rows: the axes that cut them. The
  // rank at place i of n has rows [i R/n, (i + 1) R/n), or so of each of shape().strips equal
  // strips. Empty: each has all, as of a graph with caches, whose rows may be fewer than ranks.
  AxisSet row_axes() const { return graph_.cache ? AxisSet() : graph_.mesh.Wide(Axis::kTensor); }
  // How many these are. Error(kConfig) when row_axes do not divide the microbatch's.
  int64_t LocalRows(const std::string& label) const;
  // The inputs of a node that looks along sequences, and behind them what says where those end.
  std::vector<ValueId> WithDocuments(std::vector<ValueId> inputs) const {
    if (graph_.documents) inputs.push_back(graph_.documents);
    return inputs;
  }

  // The value of a parameter, stored rows included; "" gives an absent value if it is optional.
  ValueId Param(const std::string& name, const std::string& label);
  ValueId OptionalParam(const std::string& name, const std::string& label);
  // Where a node of the forward adds to the parameter's gradient.
  ValueId ParamGrad(ValueId param);
  // The value of an input of the model; the place of one of its losses.
  ValueId Input(const std::string& name, const std::string& label);
  LossId Loss(const std::string& name, const std::string& label) const;

  ValueId NewValue(const std::string& name, ValueRole role, DType dtype, std::vector<int64_t> dims,
                   const ValuePlacement& placement = {});
  // Of the compute dtype; of f32.
  ValueId NewActivation(const std::string& name, std::vector<int64_t> dims,
                        const ValuePlacement& placement = {}, int parts = 1);
  ValueId NewStatistic(const std::string& name, std::vector<int64_t> dims,
                       const ValuePlacement& placement = {});
  // Of the loss `id`, which has none yet.
  ValueId NewLoss(LossId id, const std::string& label);

  // The local rows and columns of an activation [R, C].
  int64_t RowsOf(ValueId x, const std::string& label) const;
  int64_t Columns(ValueId x, const std::string& label) const;
  // It has whole rows, all of the microbatch's or those of this rank's part.
  void CheckRows(ValueId x, const std::string& label) const;
  // It has all rows of the microbatch on every rank; columns may be cut, if each of `parts` fused
  // blocks is.
  void CheckAllRows(ValueId x, int parts, const std::string& label) const;
  // The rows of a parameter [stored rows, columns].
  int64_t RowsOfMatrix(ValueId weight, int64_t columns, const std::string& label) const;
  void CheckDims(ValueId param, const std::vector<int64_t>& dims, const std::string& label) const;

  void Push(const NodeDef& kind, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
            std::any attrs, const std::string& label, std::vector<ValueId> grads = {});
  // A node of the prologue, of no unit.
  void PushConstant(const NodeDef& kind, ValueId output, std::any attrs, const std::string& label);

 private:
  ModelSpec spec_;
  DType compute_, norm_params_;
  LinearEncoding linears_ = LinearEncoding::kCompute;
  SemanticGraph graph_;
  UnitId unit_;
  IdVector<ParamId, const ParamSpec*> params_;          // into spec_
  std::unordered_map<std::string, ParamId> param_ids_;  // by name
  IdVector<ParamId, ValueId> param_values_;             // invalid until used
  std::vector<ValueId> input_values_;                   // by InputId; likewise
};

}  // namespace millrace
