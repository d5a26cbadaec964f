// The model's forward, as emitted by models/, and its gradients: ops over values, each value
// assigned once, no aliasing, no buffers.
//
// Letters as in kernels/ops/model_ops.h. An activation value is [R, C] (R = B*T) unless the op says
// otherwise.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/ops/model_ops.h"
#include "runtime/base/policies.h"
#include "runtime/plan/layout/model_spec.h"
#include "runtime/plan/view.h"

namespace millrace {

using ValueId = Id<struct ValueTag>;

enum class ValueRole {
  kActivation,
  kParam,      // a parameter in gather encoding; `param` says which
  kParamGrad,  // its gradient; several nodes may contribute
  kTokens,     // i32 [B,T] inputs
  kTargets,    // i32 [B,T]
  kConstant,   // computed once in the prologue (rope table)
  kLoss,       // f64 [1], summed over the microbatch
  kLogits,     // [1, Vp], generation
};

struct Value {
  std::string name;
  ValueRole role = ValueRole::kActivation;
  DType dtype = DType::kF32;
  std::vector<int64_t> dims;
  ParamId param;
};

// Inputs and outputs by position, documented per kind. "?" marks an operand that may
// be absent (an invalid id).
enum class NodeKind {
  kEmbedding,         // in: tokens, table, positions?          out: x
  kNorm,              // in: x, weight, bias?                   out: y, mean?, rstd
  kLinear,            // in: x, weight [N,K], bias?             out: y = x weight^T + bias
  kRope,              // in: qkv, table                         out: qkv with q and k heads rotated
  kAttention,         // in: qkv [R,(H+2Hkv)D]                  out: y [R,H*D], lse f32 [B,H,T]
  kAdd,               // in: a, b                               out: a + b
  kActivation,        // in: x                                  out: y
  kHeadLoss,          // in: x, weight [Vp,C], targets          out: loss, d_x?
                      // grad: weight.   Composite, by chunks of rows
  kHeadLogits,        // in: x, weight                          out: logits of row generate_row
  kRopeTable,         // in: -                                  out: table
  kEmbeddingGrad,     // in: tokens, d_x                        grad: table, positions?
  kNormGrad,          // in: d_y, x, weight, mean?, rstd        out: d_x     grad: weight, bias?
  kLinearGradInput,   // in: d_y, weight                        out: d_x
  kLinearGradWeight,  // in: d_y, x                             grad: weight
  kBiasGrad,          // in: d_y                                grad: bias
  kRopeGrad,          // in: d_qkv, table                       out: d_qkv rotated back
  kAttentionGrad,     // in: qkv, y, lse, d_y                   out: d_qkv
  kActivationGrad,    // in: x, d_y                             out: d_x
};

struct NodeAttrs {
  NormKind norm = NormKind::kLayer;
  float eps = 1e-5f;
  ActivationKind activation = ActivationKind::kGelu;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;  // rope, attention
  double rope_theta = 0;
  RopeScaling rope_scaling;
};

struct Node {
  NodeKind kind;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  std::vector<ValueId> grads;  // kParamGrad values this node contributes to
  NodeAttrs attrs;
  UnitId unit;
  std::string label;        // "h.3/attn.qkv"
  bool recomputed = false;  // a forward node emitted again in the backward
};

struct BatchShape {
  int64_t batch = 0, seq = 0;  // B, T of one microbatch on one rank
  int64_t rows() const { return batch * seq; }
  bool operator==(const BatchShape&) const = default;
};

struct SemanticGraph {
  BatchShape shape;
  int64_t vocab = 0;  // logical vocabulary: columns beyond it stay out of the softmax
  // By UnitId.
  std::vector<std::string> unit_names;
  std::vector<UnitRole> unit_roles;
  std::vector<Value> values;
  std::vector<Node> prologue;  // constants
  std::vector<Node> forward;
  std::vector<Node> backward;  // empty until AddGradients

  const Value& value(ValueId id) const { return values[static_cast<size_t>(id.value)]; }
  bool IsBlock(size_t unit) const { return unit_roles[unit] == UnitRole::kBlock; }
};

std::string_view Name(NodeKind kind);
std::string ToString(const SemanticGraph& graph);  // one line per node

enum class HeadMode { kTrainLoss, kEvalLoss, kLogits };

// Builds the forward of one microbatch. Models call it; it does shapes, names and value ids, and
// checks them (Error(kInternal) names the node).
class ForwardBuilder {
 public:
  // `param_dtype(ParamKind)` is the gather encoding; activations have dtype `compute`.
  ForwardBuilder(const ModelSpec& spec, BatchShape shape, DType compute, DType norm_params);

  void BeginUnit(const std::string& unit_name);  // later nodes belong to this unit
  ValueId Embedding(const std::string& table, const std::string& positions /* "" none */,
                    const std::string& label);
  ValueId Norm(ValueId x, const std::string& weight, const std::string& bias, NormKind kind,
               float eps, const std::string& label);
  ValueId Linear(ValueId x, const std::string& weight, const std::string& bias,
                 const std::string& label);
  ValueId RopeTable(int64_t head_dim, double theta, const RopeScaling& scaling);
  ValueId Rope(ValueId qkv, ValueId table, int64_t heads, int64_t kv_heads, int64_t head_dim,
               const std::string& label);
  ValueId Attention(ValueId qkv, int64_t heads, int64_t kv_heads, int64_t head_dim,
                    const std::string& label);
  ValueId Add(ValueId a, ValueId b, const std::string& label);
  ValueId Activation(ValueId x, ActivationKind kind, const std::string& label);
  void Head(ValueId x, const std::string& weight, HeadMode mode);

  SemanticGraph Finish() &&;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// What a unit's backward computes again instead of reading what its forward saved.
struct UnitRecompute {
  bool norms = false;        // outputs and statistics of norms
  bool activations = false;  // GELU's and SwiGLU's products
  bool others = false;       // all else: matmuls, attention, rope, sums
  bool operator==(const UnitRecompute&) const = default;
};

// By UnitId: the same for every block unit, nothing for the others. Error(kInternal): kAuto, which
// ChooseRecompute (recompute.h) decides.
std::vector<UnitRecompute> RecomputeOf(const SemanticGraph& graph, Recompute policy);

// Appends the gradient of every parameter that the loss depends on to `backward`, by one rule per
// node kind in reverse order; a value with several consumers has its gradients summed by kAdd as
// they arrive. kHeadLoss has already produced d_x and the head weight's gradient in the forward. A
// parameter that no node uses gets no gradient value: the planner keeps its gradient zero. Values
// needed from the forward are either saved or, by policy, recomputed: the forward nodes of the same
// block unit are emitted again (recomputed = true), each right before the first gradient node that
// needs it, and only if one does. Values that come from another unit are always saved; embedding
// and head are never recomputed. Bits do not depend on the policy.
// Errors  A graph without a training loss, or with a backward already; `by_unit` not of one entry
//         per unit: Error(kInternal).
SemanticGraph AddGradients(SemanticGraph graph, const std::vector<UnitRecompute>& by_unit);
SemanticGraph AddGradients(SemanticGraph graph, Recompute policy);

}  // namespace millrace
