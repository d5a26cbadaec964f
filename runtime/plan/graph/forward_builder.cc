#include <fmt/format.h>
#include <fmt/ranges.h>

#include <unordered_map>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/plan/graph/graph_edit.h"
#include "runtime/plan/graph/semantic_graph.h"

namespace millrace {

struct ForwardBuilder::State {
  ModelSpec spec;
  DType compute = DType::kF32, norm_params = DType::kF32;
  SemanticGraph graph;
  UnitId unit;
  std::vector<const ParamSpec*> params;                // by ParamId, into `spec`
  std::unordered_map<std::string, ParamId> param_ids;  // by name
  std::vector<ValueId> param_values;                   // by ParamId; invalid until used
  ValueId tokens;

  ValueId Activation(const std::string& name, std::vector<int64_t> dims) {
    return Result(name, ValueRole::kActivation, compute, std::move(dims));
  }
  ValueId Statistic(const std::string& name, std::vector<int64_t> dims) {
    return Result(name, ValueRole::kActivation, DType::kF32, std::move(dims));
  }
  ValueId Result(const std::string& name, ValueRole role, DType dtype, std::vector<int64_t> dims) {
    return AddValue(
        graph,
        Value{.name = name, .role = role, .dtype = dtype, .dims = std::move(dims), .param = {}});
  }

  // The value of a parameter as the node `label` uses it: stored rows included.
  ValueId Param(const std::string& name, const std::string& label) {
    const auto found = param_ids.find(name);
    MR_CHECK(found != param_ids.end(), "node {}: model {} has no parameter '{}'", label,
             spec.family, name);
    const ParamId id = found->second;
    ValueId& value = param_values[static_cast<size_t>(id.value)];
    if (value) return value;
    const ParamSpec& param = *params[static_cast<size_t>(id.value)];
    std::vector<int64_t> dims = param.dims;
    dims[0] = param.padded_rows;
    value = AddValue(graph, Value{.name = name,
                                  .role = ValueRole::kParam,
                                  .dtype = param.kind == ParamKind::kNorm ? norm_params : compute,
                                  .dims = std::move(dims),
                                  .param = id});
    return value;
  }
  ValueId OptionalParam(const std::string& name, const std::string& label) {
    return name.empty() ? ValueId{} : Param(name, label);
  }

  ValueId Tokens() {
    if (!tokens)
      tokens =
          Result("tokens", ValueRole::kTokens, DType::kI32, {graph.shape.batch, graph.shape.seq});
    return tokens;
  }

  // The columns of an activation [R, C].
  int64_t Columns(ValueId x, const std::string& label) const {
    MR_CHECK(x && static_cast<size_t>(x.value) < graph.values.size(),
             "node {}: input is no value of this graph", label);
    const Value& value = graph.value(x);
    MR_CHECK(value.role == ValueRole::kActivation && value.dims.size() == 2 &&
                 value.dims[0] == graph.shape.rows(),
             "node {}: input {} is [{}]; an activation [{}, C] is needed", label, value.name,
             fmt::join(value.dims, ", "), graph.shape.rows());
    return value.dims[1];
  }

  void CheckDims(ValueId param, const std::vector<int64_t>& dims, const std::string& label) const {
    if (!param) return;
    const Value& value = graph.value(param);
    MR_CHECK(value.dims == dims, "node {}: parameter {} is [{}], the node needs [{}]", label,
             value.name, fmt::join(value.dims, ", "), fmt::join(dims, ", "));
  }

  // [stored rows, columns], with as many columns as x.
  int64_t RowsOfMatrix(ValueId weight, int64_t columns, const std::string& label) const {
    const Value& value = graph.value(weight);
    MR_CHECK(value.dims.size() == 2 && value.dims[1] == columns,
             "node {}: parameter {} is [{}], the node needs [N, {}]", label, value.name,
             fmt::join(value.dims, ", "), columns);
    return value.dims[0];
  }

  void Push(NodeKind kind, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
            NodeAttrs attrs, const std::string& label, std::vector<ValueId> grads = {}) {
    MR_CHECK(unit, "node {}: BeginUnit comes first", label);
    graph.forward.push_back(Node{.kind = kind,
                                 .inputs = std::move(inputs),
                                 .outputs = std::move(outputs),
                                 .grads = std::move(grads),
                                 .attrs = attrs,
                                 .unit = unit,
                                 .label = label});
  }
};

ForwardBuilder::ForwardBuilder(const ModelSpec& spec, BatchShape shape, DType compute,
                               DType norm_params)
    : state_(std::make_shared<State>()) {
  ValidateModelSpec(spec);
  MR_CHECK(shape.batch > 0 && shape.seq > 0, "batch {} and sequence {} must be positive",
           shape.batch, shape.seq);
  State& s = *state_;
  s.spec = spec;
  s.compute = compute;
  s.norm_params = norm_params;
  s.graph.shape = shape;
  s.graph.vocab = spec.vocab;
  for (const UnitSpec& unit : s.spec.units) {
    s.graph.unit_names.push_back(unit.name);
    s.graph.unit_roles.push_back(unit.role);
    for (const ParamSpec& param : unit.params) {
      s.param_ids.emplace(param.name, ParamId{static_cast<int32_t>(s.params.size())});
      s.params.push_back(&param);
    }
  }
  s.param_values.resize(s.params.size());
}

void ForwardBuilder::BeginUnit(const std::string& unit_name) {
  State& s = *state_;
  const size_t count = s.graph.unit_names.size();
  const size_t next = static_cast<size_t>(s.unit.value + 1);  // models go through units in order
  for (size_t k = 0; k < count; ++k) {
    const size_t i = (next + k) % count;
    if (s.graph.unit_names[i] != unit_name) continue;
    s.unit = UnitId{static_cast<int32_t>(i)};
    return;
  }
  MR_FAIL("model {} has no unit '{}'", s.spec.family, unit_name);
}

ValueId ForwardBuilder::Embedding(const std::string& table, const std::string& positions,
                                  const std::string& label) {
  State& s = *state_;
  const ValueId table_value = s.Param(table, label);
  const int64_t width = s.graph.value(table_value).dims.back();
  const ValueId positions_value = s.OptionalParam(positions, label);
  if (positions_value) {
    const int64_t limit = s.RowsOfMatrix(positions_value, width, label);
    MR_CHECK_LE(s.graph.shape.seq, limit, "node {}: sequence length against rows of {}", label,
                positions);
  }
  const ValueId out = s.Activation(label, {s.graph.shape.rows(), width});
  s.Push(NodeKind::kEmbedding, {s.Tokens(), table_value, positions_value}, {out}, {}, label);
  return out;
}

ValueId ForwardBuilder::Norm(ValueId x, const std::string& weight, const std::string& bias,
                             NormKind kind, float eps, const std::string& label) {
  State& s = *state_;
  const int64_t width = s.Columns(x, label);
  const ValueId weight_value = s.Param(weight, label), bias_value = s.OptionalParam(bias, label);
  s.CheckDims(weight_value, {width}, label);
  s.CheckDims(bias_value, {width}, label);
  const ValueId out = s.Activation(label, {s.graph.shape.rows(), width});
  const ValueId mean =
      kind == NormKind::kLayer ? s.Statistic(label + ".mean", {s.graph.shape.rows()}) : ValueId{};
  const ValueId rstd = s.Statistic(label + ".rstd", {s.graph.shape.rows()});
  NodeAttrs attrs;
  attrs.norm = kind;
  attrs.eps = eps;
  s.Push(NodeKind::kNorm, {x, weight_value, bias_value}, {out, mean, rstd}, attrs, label);
  return out;
}

ValueId ForwardBuilder::Linear(ValueId x, const std::string& weight, const std::string& bias,
                               const std::string& label) {
  State& s = *state_;
  const ValueId weight_value = s.Param(weight, label), bias_value = s.OptionalParam(bias, label);
  const int64_t width = s.RowsOfMatrix(weight_value, s.Columns(x, label), label);
  s.CheckDims(bias_value, {width}, label);
  const ValueId out = s.Activation(label, {s.graph.shape.rows(), width});
  s.Push(NodeKind::kLinear, {x, weight_value, bias_value}, {out}, {}, label);
  return out;
}

ValueId ForwardBuilder::RopeTable(int64_t head_dim, double theta, const RopeScaling& scaling) {
  State& s = *state_;
  MR_CHECK(head_dim > 0 && head_dim % 2 == 0, "rope table: head_dim {} is not even", head_dim);
  const ValueId table = s.Result("rope_table", ValueRole::kConstant, DType::kF32,
                                 {s.graph.shape.seq, head_dim / 2, 2});
  Node node{.kind = NodeKind::kRopeTable,
            .inputs = {},
            .outputs = {table},
            .grads = {},
            .attrs = {},
            .unit = {},
            .label = "rope_table"};
  node.attrs.rope_theta = theta;
  node.attrs.rope_scaling = scaling;
  s.graph.prologue.push_back(std::move(node));
  return table;
}

namespace {

NodeAttrs HeadAttrs(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t qkv_columns,
                    const std::string& label) {
  MR_CHECK(heads > 0 && kv_heads > 0 && heads % kv_heads == 0,
           "node {}: {} heads over {} key/value heads", label, heads, kv_heads);
  MR_CHECK_EQ(qkv_columns, (heads + 2 * kv_heads) * head_dim,
              "node {}: columns of qkv against (heads + 2 kv_heads) head_dim", label);
  NodeAttrs attrs;
  attrs.heads = heads;
  attrs.kv_heads = kv_heads;
  attrs.head_dim = head_dim;
  return attrs;
}

}  // namespace

ValueId ForwardBuilder::Rope(ValueId qkv, ValueId table, int64_t heads, int64_t kv_heads,
                             int64_t head_dim, const std::string& label) {
  State& s = *state_;
  const int64_t width = s.Columns(qkv, label);
  const NodeAttrs attrs = HeadAttrs(heads, kv_heads, head_dim, width, label);
  s.CheckDims(table, {s.graph.shape.seq, head_dim / 2, 2}, label);
  const ValueId out = s.Activation(label, {s.graph.shape.rows(), width});
  s.Push(NodeKind::kRope, {qkv, table}, {out}, attrs, label);
  return out;
}

ValueId ForwardBuilder::Attention(ValueId qkv, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                  const std::string& label) {
  State& s = *state_;
  const NodeAttrs attrs = HeadAttrs(heads, kv_heads, head_dim, s.Columns(qkv, label), label);
  const ValueId out = s.Activation(label, {s.graph.shape.rows(), heads * head_dim});
  const ValueId lse = s.Statistic(label + ".lse", {s.graph.shape.batch, heads, s.graph.shape.seq});
  s.Push(NodeKind::kAttention, {qkv}, {out, lse}, attrs, label);
  return out;
}

ValueId ForwardBuilder::Add(ValueId a, ValueId b, const std::string& label) {
  State& s = *state_;
  const int64_t width = s.Columns(a, label);
  MR_CHECK_EQ(width, s.Columns(b, label), "node {}: columns of the two terms", label);
  const ValueId out = s.Activation(label, {s.graph.shape.rows(), width});
  s.Push(NodeKind::kAdd, {a, b}, {out}, {}, label);
  return out;
}

ValueId ForwardBuilder::Activation(ValueId x, ActivationKind kind, const std::string& label) {
  State& s = *state_;
  const int64_t columns = s.Columns(x, label);
  MR_CHECK(kind == ActivationKind::kGelu || columns % 2 == 0, "node {}: swiglu of {} columns",
           label, columns);
  const int64_t width = kind == ActivationKind::kSwiglu ? columns / 2 : columns;
  const ValueId out = s.Activation(label, {s.graph.shape.rows(), width});
  NodeAttrs attrs;
  attrs.activation = kind;
  s.Push(NodeKind::kActivation, {x}, {out}, attrs, label);
  return out;
}

void ForwardBuilder::Head(ValueId x, const std::string& weight, HeadMode mode) {
  State& s = *state_;
  const std::string label = mode == HeadMode::kLogits ? "head/logits" : "head/loss";
  const int64_t width = s.Columns(x, label);
  const ValueId weight_value = s.Param(weight, label);
  const int64_t padded_vocab = s.RowsOfMatrix(weight_value, width, label);
  MR_CHECK_LE(s.graph.vocab, padded_vocab, "node {}: vocabulary against the stored rows of {}",
              label, weight);
  if (mode == HeadMode::kLogits) {
    const ValueId logits = s.Result("logits", ValueRole::kLogits, DType::kF32, {1, padded_vocab});
    s.Push(NodeKind::kHeadLogits, {x, weight_value}, {logits}, {}, label);
    return;
  }
  const BatchShape shape = s.graph.shape;
  const ValueId targets =
      s.Result("targets", ValueRole::kTargets, DType::kI32, {shape.batch, shape.seq});
  const ValueId loss = s.Result("loss", ValueRole::kLoss, DType::kF64, {1});
  std::vector<ValueId> outputs = {loss, ValueId{}}, grads;
  if (mode == HeadMode::kTrainLoss) {
    outputs[1] = s.Activation(fmt::format("d({})", s.graph.value(x).name), {shape.rows(), width});
    grads = {ParamGradOf(s.graph, weight_value)};
  }
  s.Push(NodeKind::kHeadLoss, {x, weight_value, targets}, std::move(outputs), {}, label,
         std::move(grads));
}

SemanticGraph ForwardBuilder::Finish() && {
  MR_CHECK(!state_->graph.forward.empty(), "model {} emitted no forward", state_->spec.family);
  return std::move(state_->graph);
}

}  // namespace millrace
