// The model's forward, as emitted by models/, and its gradients: ops over values, each value
// assigned once, no aliasing, no buffers. forward_builder.h writes the forward, gradients.h the
// backward.
//
// Letters as in kernels/ops/model_ops.h. An activation value is [R, C] (R = B*T) unless the op says
// otherwise.
#pragma once

#include <any>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "kernels/ops/cache_ops.h"
#include "kernels/ops/context_rows.h"
#include "kernels/ops/model_ops.h"
#include "runtime/base/error.h"
#include "runtime/base/id_vector.h"
#include "runtime/plan/graph/node_def.h"
#include "runtime/plan/graph/placement.h"
#include "runtime/plan/layout/model_spec.h"
#include "runtime/plan/view.h"

namespace millrace {

using ValueId = Id<struct ValueTag>;
using InputId = Id<struct InputTag>;  // into SemanticGraph::inputs
using LossId = Id<struct LossTag>;    // into SemanticGraph::losses

enum class ValueRole {
  kActivation,
  kParam,      // a parameter in gather encoding; `param` says which
  kParamGrad,  // its gradient; several nodes may contribute. None where no node reads it
  kInput,      // SemanticGraph::input_shape(), given by the host; `input` says which
  kConstant,   // made by the prologue (rope table)
  kLoss,       // f64 [1], summed over the microbatch; `loss` says which
  kLogits,     // f32 [rows, Vp], generation
  kHostState,  // a state that the host writes before the graph runs: what its rows are
  kCache,      // a state that an era of inference keeps, cleared as it begins
  kOutput,     // read by the host after the plan has run, by the value's name
};

struct Value {
  std::string name;
  ValueRole role = ValueRole::kActivation;
  DType dtype = DType::kF32;
  std::vector<int64_t> dims;  // local: of what one rank holds
  ValuePlacement placement = {};
  // Blocks that lie fused along the last dim (q|k|v; of a weight's gradient and of a weight: along
  // the first): what cuts that dim cuts each of them evenly.
  int parts = 1;
  ParamId param = {};
  bool trained = true;  // false: a parameter that stays as it is, or the gradient of one
  InputId input = {};
  LossId loss = {};
};

inline int64_t BytesOf(const Value& value) {
  int64_t bytes = Bytes(value.dtype);
  for (const int64_t dim : value.dims) bytes *= dim;
  return bytes;
}

struct Node {
  const NodeDef* kind = nullptr;
  // By position, as the kind's definition says; an absent one is an invalid id.
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  // kParamGrad values this node contributes to. Ranks' parts are summed over the axes that do not
  // split the parameter (plan/layout/shard_layout.h).
  std::vector<ValueId> grads;
  std::any attrs;  // of the type that the definition says; a gradient node has those
                   // of its forward node
  UnitId unit;
  std::string label;        // "h.3/attn.qkv"
  bool recomputed = false;  // a forward node emitted again in the backward
};

// A node's attributes. Error(kInternal) when they are of another type.
template <class T>
const T& Attrs(const Node& node) {
  const T* attrs = std::any_cast<T>(&node.attrs);
  MR_CHECK(attrs != nullptr, "node {}: attributes of another type than {} has", node.label,
           node.kind->name);
  return *attrs;
}

struct BatchShape {
  int64_t batch = 0, seq = 0;  // B, T of one microbatch on one data rank (base/mesh.h)
  // Where ranks have a part of the rows each: equal strips of the rows, of each of which a rank has
  // its part. Strips are exchanged one by one, beside the products of others.
  int64_t strips = 1;
  int64_t rows() const { return batch * seq; }
  bool operator==(const BatchShape&) const = default;
};

// The same of inputs at one of n ranks that share sequences: each of its two chunks of a sequence
// (kernels/ops/context_rows.h) is a row of its own.
constexpr BatchShape InputShape(const BatchShape& whole, int64_t n) {
  return n == 1 ? whole : BatchShape{2 * whole.batch, whole.seq / (2 * n)};
}

inline constexpr const char* kRowsState = "infer/rows";

// Of a graph whose rows are new tokens of sequences that keep caches (kernels/ops/cache_ops.h).
struct CacheShape {
  int64_t slots = 0;
  int64_t pages = 0, page_tokens = 0, pages_of_sequence = 0;
  int64_t length = 0;       // positions that the model can have: T of its training
  int64_t rows = 0;         // most rows of any graph of the run
  ValueId rows_state = {};  // i32 [3, rows]: of each row of this graph token, position, slot
  int64_t logits = 0;       // of so many of this graph's last rows logits are asked for
  RowsFrom rows_from = RowsFrom::kManySequences;  // of this graph's rows
  // MatmulAttrs' like_rows: of products of the training forward that have the rows of all ranks of
  // a data rank, strip by strip, and of those of a rank's own rows between blocks. 0: any bits.
  int64_t like_rows = 0, like_own_rows = 0;
};

struct SemanticGraph {
  BatchShape shape;  // of this rank's rows of each sequence: T/n, n ranks along context
  Mesh mesh;
  int64_t vocab = 0;  // logical vocabulary: columns beyond it stay out of the softmax
  // All that the model declares, whether this graph has them or not.
  std::vector<InputSpec> inputs;
  std::vector<LossSpec> losses;
  // i32 [B,T]: rows of T are documents end to end (kernels/ops/model_ops.h). Absent: each is one.
  ValueId documents;
  std::optional<CacheShape> cache;  // none: rows are whole sequences
  // By UnitId.
  std::vector<std::string> unit_names;
  std::vector<UnitRole> unit_roles;
  // A reference to a value, or to its placement, stays good while nodes add others.
  std::deque<Value> values;
  std::vector<Node> prologue;  // constants
  std::vector<Node> forward;
  std::vector<Node> backward;  // empty until AddGradients

  const Value& value(ValueId id) const { return values[static_cast<size_t>(id.value)]; }
  Value& value(ValueId id) { return values[static_cast<size_t>(id.value)]; }
  IdRange<ValueId> value_ids() const { return IdsOf<ValueId>(values.size()); }
  const LossSpec& loss(LossId id) const { return losses[static_cast<size_t>(id.value)]; }
  bool IsBlock(size_t unit) const { return unit_roles[unit] == UnitRole::kBlock; }
  bool IsBlock(UnitId unit) const { return IsBlock(static_cast<size_t>(unit.value)); }

  int64_t context() const { return mesh.Size(Axis::kContext); }
  int64_t whole_seq() const { return shape.seq * context(); }  // T
  ContextRows context_rows() const { return ZigzagRows(context(), shape.seq, Axis::kContext); }
  BatchShape input_shape() const { return InputShape({shape.batch, whole_seq()}, context()); }
};

// Rows [begin, begin + rows) of a value [R, C] that follow each other in the microbatch, too, whose
// first is row `first` of that.
struct RowStrip {
  int64_t begin = 0, rows = 0;
  RankInt first;
};
// All rows, or the strips in which a value lies that rows are cut of; and of whole rows the strips
// that are exchanged one by one, where they are.
std::vector<RowStrip> StripsOf(const SemanticGraph& graph, const Value& value);

std::string ToString(const SemanticGraph& graph);  // one line per node

}  // namespace millrace
