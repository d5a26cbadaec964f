// The second half of Lower: kernel ops over views of buffers, one function per kind of node.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/plan/lower/fusion.h"
#include "runtime/plan/lower/lower.h"
#include "runtime/plan/lower/value_storage.h"

namespace millrace {

// Why the backend cannot run the op; "" when it can, and for ops that every backend must run.
std::string Refusal(const MatmulOp<View>& op, Backend backend);
std::string Refusal(const AttentionOp<View>& op, Backend backend);
std::string Refusal(const RopeOp<View>& op, Backend backend);
template <template <class> class Op>
std::string Refusal(const Op<View>&, Backend) {
  return "";
}

View Transposed(View view);
// Rows [begin, begin + rows) of a 2-D view.
View Rows(View view, int64_t begin, int64_t rows);

class Lowering {
 public:
  Lowering(const SemanticGraph& graph, const LowerOptions& options)
      : graph_(graph), options_(options), fused_(Fuse(graph, options)), storage_(graph, fused_) {}
  Program Run() &&;

 private:
  void LowerSteps(const std::vector<Step>& steps, std::vector<ProgramOp>& ops);
  void LowerStep(const Step& step);

  // lower_layers.cc
  void Embedding(const Node& node);
  void EmbeddingGrad(const Node& node);
  void Norm(const Step& step);
  void NormGrad(const Step& step);
  void Linear(const Step& step);
  void LinearGradInput(const Step& step);
  void LinearGradWeight(const Node& node);
  void BiasGrad(const Node& node);
  void RopeTable(const Node& node);
  void Rope(const Node& node, RopeDirection direction);
  void Attention(const Node& node);
  void AttentionGrad(const Node& node);
  void Add(const Node& node);
  void Activation(const Node& node);
  void ActivationGrad(const Node& node);

  // lower_head.cc
  void HeadLoss(const Node& node);
  void HeadLogits(const Node& node);

  // Heads [first, first + heads) of fused rows, as [B, T, heads, D].
  View HeadsOf(View rows, const NodeAttrs& attrs, int64_t first, int64_t heads) const;

  template <class Op>
  void Push(Op op, const Node& node, const std::string& suffix = "") {
    std::string label = node.label + suffix;
    const std::string why = Refusal(op, options_.backend);
    MR_REQUIRE(ErrorCode::kConfig, why.empty(), "{}: {}", label, why);
    ops_->push_back(ProgramOp{.op = std::move(op),
                              .label = std::move(label),
                              .unit = node.unit,
                              .recomputed = node.recomputed});
  }

  const SemanticGraph& graph_;
  const LowerOptions& options_;
  FusedGraph fused_;
  ValueStorage storage_;
  Program program_;
  std::vector<ProgramOp>* ops_ = nullptr;  // the section being written
};

}  // namespace millrace
