#include "runtime/plan/graph/forward_builder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/plan/graph/graph_edit.h"
#include "runtime/plan/layout/shard_layout.h"

namespace millrace {

ForwardBuilder::ForwardBuilder(const ModelSpec& spec, BatchShape shape, DType compute,
                               DType norm_params, const Mesh& mesh)
    : spec_(spec), compute_(compute), norm_params_(norm_params) {
  ValidateModelSpec(spec);
  MR_CHECK(shape.batch > 0 && shape.seq > 0, "batch {} and sequence {} must be positive",
           shape.batch, shape.seq);
  graph_.shape = shape;
  graph_.mesh = mesh;
  if (const int64_t n = graph_.context(); n > 1) {
    MR_REQUIRE(ErrorCode::kConfig, shape.seq % (2 * n) == 0,
               "sequences of {} are not {} equal chunks, two on each of {} ranks along context",
               shape.seq, 2 * n, n);
    graph_.shape.seq /= n;
  }
  graph_.vocab = spec.vocab;
  for (const UnitSpec& unit : spec_.units) {
    graph_.unit_names.push_back(unit.name);
    graph_.unit_roles.push_back(unit.role);
    for (const ParamSpec& param : unit.params) {
      param_ids_.emplace(param.name, params_.push_back(&param));
    }
  }
  param_values_.resize(params_.size());
  input_values_.resize(spec.inputs.size());
  graph_.inputs = spec.inputs;
  graph_.losses = spec.losses;
}

void ForwardBuilder::BeginUnit(const std::string& unit_name) {
  const size_t count = graph_.unit_names.size();
  const size_t next = static_cast<size_t>(unit_.value + 1);  // models go through units in order
  for (size_t k = 0; k < count; ++k) {
    const size_t i = (next + k) % count;
    if (graph_.unit_names[i] != unit_name) continue;
    unit_ = UnitId{static_cast<int32_t>(i)};
    return;
  }
  MR_FAIL("model {} has no unit '{}'", spec_.family, unit_name);
}

ValueId ForwardBuilder::NewValue(const std::string& name, ValueRole role, DType dtype,
                                 std::vector<int64_t> dims, const ValuePlacement& placement) {
  MR_CHECK(Valid(placement), "value {} is placed twice along an axis: {}", name,
           ToString(placement));
  return AddValue(graph_, Value{.name = name,
                                .role = role,
                                .dtype = dtype,
                                .dims = std::move(dims),
                                .placement = placement});
}

ValueId ForwardBuilder::NewActivation(const std::string& name, std::vector<int64_t> dims,
                                      const ValuePlacement& placement, int parts) {
  const ValueId id = NewValue(name, ValueRole::kActivation, compute_, std::move(dims), placement);
  graph_.value(id).parts = parts;
  return id;
}

ValueId ForwardBuilder::NewStatistic(const std::string& name, std::vector<int64_t> dims,
                                     const ValuePlacement& placement) {
  return NewValue(name, ValueRole::kActivation, DType::kF32, std::move(dims), placement);
}

ValueId ForwardBuilder::Param(const std::string& name, const std::string& label) {
  const auto found = param_ids_.find(name);
  MR_CHECK(found != param_ids_.end(), "node {}: model {} has no parameter '{}'", label,
           spec_.family, name);
  const ParamId id = found->second;
  ValueId& value = param_values_[id];
  if (value) return value;
  const ParamSpec& param = *params_[id];
  std::vector<int64_t> dims = LocalDims(param, mesh());
  dims[0] += param.padded_rows - param.dims[0];
  Value stored{.name = name,
               .role = ValueRole::kParam,
               .dtype = EncodingOf(param.kind, {compute_, norm_params_}),
               .dims = std::move(dims),
               .param = id,
               .trained = param.trainable};
  for (const Split& split : param.splits) {
    const auto dim = static_cast<size_t>(split.dim);
    const AxisSet axes = mesh().Wide(split.axes);
    if (axes.empty()) continue;
    stored.placement.cut.resize(std::max(stored.placement.cut.size(), dim + 1));
    stored.placement.cut[dim] = axes;
    if (dim == 0) stored.parts = std::max<int>(1, static_cast<int>(split.parts.size()));
  }
  value = AddValue(graph_, std::move(stored));
  return value;
}

ValueId ForwardBuilder::OptionalParam(const std::string& name, const std::string& label) {
  return name.empty() ? ValueId{} : Param(name, label);
}

ValueId ForwardBuilder::ParamGrad(ValueId param) { return ParamGradOf(graph_, param); }

ValueId ForwardBuilder::Input(const std::string& name, const std::string& label) {
  size_t i = 0;
  while (i < spec_.inputs.size() && spec_.inputs[i].name != name) ++i;
  MR_CHECK(i < spec_.inputs.size(), "node {}: model {} has no input '{}'", label, spec_.family,
           name);
  ValueId& value = input_values_[i];
  if (!value)
    value = AddValue(graph_, Value{.name = name,
                                   .role = ValueRole::kInput,
                                   .dtype = spec_.inputs[i].dtype,
                                   .dims = {graph_.input_shape().batch, graph_.input_shape().seq},
                                   .input = InputId{static_cast<int32_t>(i)}});
  return value;
}

void ForwardBuilder::KeepCaches(const CacheShape& cache) {
  graph_.cache = cache;
  graph_.cache->rows_state = State(kRowsState, ValueRole::kHostState, DType::kI32, {3, cache.rows});
}

ValueId ForwardBuilder::State(const std::string& name, ValueRole role, DType dtype,
                              std::vector<int64_t> dims) {
  MR_CHECK(graph_.cache, "a state {} of a graph without caches", name);
  for (const ValueId id : graph_.value_ids())
    if (graph_.value(id).role == role && graph_.value(id).name == name) return id;
  return NewValue(name, role, dtype, std::move(dims));
}

LossId ForwardBuilder::Loss(const std::string& name, const std::string& label) const {
  for (const LossId id : IdsOf<LossId>(graph_.losses.size()))
    if (graph_.loss(id).name == name) return id;
  MR_FAIL("node {}: model {} has no loss '{}'", label, spec_.family, name);
}

ValueId ForwardBuilder::NewLoss(LossId id, const std::string& label) {
  const std::string& name = graph_.loss(id).name;
  for (const Value& value : graph_.values)
    MR_CHECK(value.loss != id, "node {}: there is a head of loss '{}' already", label, name);
  return AddValue(
      graph_,
      Value{.name = name, .role = ValueRole::kLoss, .dtype = DType::kF64, .dims = {1}, .loss = id});
}

int64_t ForwardBuilder::RowsOf(ValueId x, const std::string& label) const {
  MR_CHECK(x && static_cast<size_t>(x.value) < graph_.values.size(),
           "node {}: input is no value of this graph", label);
  const Value& value = graph_.value(x);
  MR_CHECK(value.role == ValueRole::kActivation && value.dims.size() == 2,
           "node {}: input {} is [{}]; an activation [R, C] is needed", label, value.name,
           fmt::join(value.dims, ", "));
  return value.dims[0];
}

int64_t ForwardBuilder::Columns(ValueId x, const std::string& label) const {
  RowsOf(x, label);
  return graph_.value(x).dims[1];
}

int64_t ForwardBuilder::LocalRows(const std::string& label) const {
  const int64_t rows = graph_.shape.rows(), ranks = mesh().Size(row_axes()),
                strips = row_axes().empty() ? 1 : graph_.shape.strips;
  MR_REQUIRE(ErrorCode::kConfig, rows % (ranks * strips) == 0,
             "node {}: {} sequences of {} positions are {} rows, which {} strips for {} ranks of "
             "{} each do not divide",
             label, graph_.shape.batch, graph_.shape.seq, rows, strips, ranks,
             ToString(row_axes()));
  return rows / ranks;
}

void ForwardBuilder::CheckRows(ValueId x, const std::string& label) const {
  const int64_t rows = RowsOf(x, label);
  const Value& value = graph_.value(x);
  const ValuePlacement& at = value.placement;
  MR_CHECK(at.partial.empty() && at.Cut(1).empty() &&
               rows * mesh().Size(at.Cut(0)) == graph_.shape.rows(),
           "node {}: input {} has {} rows, {}; {} rows or a part of them are needed, whole", label,
           value.name, rows, ToString(at), graph_.shape.rows());
}

void ForwardBuilder::CheckAllRows(ValueId x, int parts, const std::string& label) const {
  const int64_t rows = RowsOf(x, label);
  const Value& value = graph_.value(x);
  const ValuePlacement& at = value.placement;
  MR_CHECK(
      rows == graph_.shape.rows() && at.partial.empty() && at.Cut(0).empty() &&
          (at.Cut(1).empty() || value.parts == parts),
      "node {}: input {} has {} rows, {}, its columns cut in {} parts; all {} rows are needed, "
      "columns cut in {} parts if at all",
      label, value.name, rows, ToString(at), value.parts, graph_.shape.rows(), parts);
}

int64_t ForwardBuilder::RowsOfMatrix(ValueId weight, int64_t columns,
                                     const std::string& label) const {
  const Value& value = graph_.value(weight);
  MR_CHECK(value.dims.size() == 2 && value.dims[1] == columns,
           "node {}: parameter {} is [{}], the node needs [N, {}]", label, value.name,
           fmt::join(value.dims, ", "), columns);
  return value.dims[0];
}

void ForwardBuilder::CheckDims(ValueId param, const std::vector<int64_t>& dims,
                               const std::string& label) const {
  if (!param) return;
  const Value& value = graph_.value(param);
  MR_CHECK(value.dims == dims, "node {}: parameter {} is [{}], the node needs [{}]", label,
           value.name, fmt::join(value.dims, ", "), fmt::join(dims, ", "));
}

void ForwardBuilder::Push(const NodeDef& kind, std::vector<ValueId> inputs,
                          std::vector<ValueId> outputs, std::any attrs, const std::string& label,
                          std::vector<ValueId> grads) {
  MR_CHECK(unit_, "node {}: BeginUnit comes first", label);
  graph_.forward.push_back(Node{.kind = &kind,
                                .inputs = std::move(inputs),
                                .outputs = std::move(outputs),
                                .grads = std::move(grads),
                                .attrs = std::move(attrs),
                                .unit = unit_,
                                .label = label});
}

void ForwardBuilder::PushConstant(const NodeDef& kind, ValueId output, std::any attrs,
                                  const std::string& label) {
  graph_.prologue.push_back(Node{.kind = &kind,
                                 .inputs = {},
                                 .outputs = {output},
                                 .grads = {},
                                 .attrs = std::move(attrs),
                                 .unit = {},
                                 .label = label});
}

SemanticGraph ForwardBuilder::Finish() && {
  MR_CHECK(!graph_.forward.empty(), "model {} emitted no forward", spec_.family);
  // Else a cell of the statistics that is read would keep what another plan wrote. Who evaluates
  // reads the held-out losses; who trains reads all of them (AddGradients).
  std::vector<LossSpec> emitted;
  for (const Value& value : graph_.values)
    if (value.role == ValueRole::kLoss) emitted.push_back(graph_.loss(value.loss));
  const auto held_out = [](const std::vector<LossSpec>& losses) {
    return std::count_if(losses.begin(), losses.end(),
                         [](const LossSpec& loss) { return loss.held_out; });
  };
  MR_CHECK(emitted.empty() || held_out(emitted) == held_out(graph_.losses),
           "model {} emitted {} of {} losses: evaluation gives others, too", spec_.family,
           emitted.size(), graph_.losses.size());
  return std::move(graph_);
}

}  // namespace millrace
