#include "runtime/plan/lower/value_storage.h"

#include "runtime/base/error.h"
#include "runtime/base/step_scalars.h"

namespace millrace {
namespace {

Layout DenseLayoutOf(DType dtype, const std::vector<int64_t>& dims) {
  Layout layout = DenseLayout(dtype, {});
  layout.rank = static_cast<int>(dims.size());
  int64_t stride = 1;
  for (int i = layout.rank - 1; i >= 0; --i) {
    layout.dims[i] = dims[i];
    layout.strides[i] = stride;
    stride *= dims[i];
  }
  return layout;
}

ProgramRole RoleOf(ValueRole role) {
  switch (role) {
    case ValueRole::kActivation:
      return ProgramRole::kActivation;
    case ValueRole::kParam:
      return ProgramRole::kParam;
    case ValueRole::kParamGrad:
      return ProgramRole::kParamGrad;
    case ValueRole::kInput:
      return ProgramRole::kInput;
    case ValueRole::kConstant:
      return ProgramRole::kConstant;
    case ValueRole::kLoss:
      return ProgramRole::kLoss;
    case ValueRole::kLogits:
      return ProgramRole::kLogits;
    case ValueRole::kHostState:
      return ProgramRole::kHostState;
    case ValueRole::kCache:
      return ProgramRole::kCache;
    case ValueRole::kOutput:
      return ProgramRole::kOutput;
  }
  return ProgramRole::kActivation;
}

}  // namespace

ValueStorage::ValueStorage(const SemanticGraph& graph, const FusedGraph& fused)
    : graph_(graph),
      storage_(graph.values.size()),
      last_read_(graph.values.size(), -1),
      contributed_(graph.values.size(), false),
      sources_(SourcesOf(graph.inputs, graph.losses)),
      source_buffers_(sources_.size()) {
  int step = 0;
  for (const std::vector<Step>* steps : {&fused.prologue, &fused.forward, &fused.backward})
    for (const Step& each : *steps) {
      for (const ValueId id : ReadsOf(each)) last_read_[id] = step;
      ++step;
    }
}

BufferId ValueStorage::AddBuffer(std::string name, ProgramRole role, Layout layout, ParamId param) {
  buffers_.push_back(
      ProgramBuffer{.name = std::move(name), .role = role, .layout = layout, .param = param});
  return BufferId{static_cast<int32_t>(buffers_.size()) - 1};
}

View ValueStorage::ViewOf(BufferId buffer, ValueId id) const {
  return View{.buffer = buffer, .layout = DenseLayoutOf(value(id).dtype, value(id).dims)};
}

View ValueStorage::Read(ValueId id) {
  if (!id) return {};
  switch (value(id).role) {
    case ValueRole::kInput:
      return Input(graph_.inputs[static_cast<size_t>(value(id).input.value)]);
    case ValueRole::kParam:
    case ValueRole::kHostState:
    case ValueRole::kCache:
      if (!storage_[id]) return Write(id);
      break;
    default:
      break;
  }
  MR_CHECK(storage_[id], "value {} is read before it is written", value(id).name);
  return ViewOf(storage_[id], id);
}

View ValueStorage::Write(ValueId id) {
  if (!id) return {};
  const Value& v = value(id);
  BufferId& storage = storage_[id];
  if (!storage) {
    storage = AddBuffer(v.name, RoleOf(v.role), DenseLayoutOf(v.dtype, v.dims), v.param);
    buffers_.back().loss = v.loss;
  }
  return ViewOf(storage, id);
}

View ValueStorage::WriteOver(ValueId id, ValueId old) {
  storage_[id] = storage_[old];
  return ViewOf(storage_[id], id);
}

View ValueStorage::Grad(ValueId id, Update& update) {
  if (!id) return {};
  char& contributed = contributed_[id];
  update = contributed ? Update::kAccumulate : Update::kOverwrite;
  contributed = true;
  return Write(id);
}

View ValueStorage::Payload(ValueId param, DType dtype) {
  const Value& v = value(param);
  return Whole(AddBuffer(v.name, ProgramRole::kParam, DenseLayoutOf(dtype, v.dims), v.param));
}

View ValueStorage::PayloadScales(ValueId param, const Layout& layout, ScaleRounding rounding) {
  const Value& v = value(param);
  const BufferId id = AddBuffer(v.name + ".scales", ProgramRole::kParamScales, layout, v.param);
  buffers_.back().scale_rounding = rounding;
  return Whole(id);
}

bool ValueStorage::CanReplace(ValueId old, ValueId id) const {
  return value(old).role == ValueRole::kActivation && value(old).dtype == value(id).dtype &&
         value(old).dims == value(id).dims && !ReadLater(old);
}

View ValueStorage::Input(const InputSpec& input) {
  const BatchShape shape = graph_.input_shape();
  const int64_t batch = shape.batch, seq = shape.seq;
  for (const SourceId id : source_buffers_.ids()) {
    const InputSource& source = sources_[static_cast<size_t>(id.value)];
    if (source.name != input.source) continue;
    BufferId& buffer = source_buffers_[id];
    if (!buffer) {
      buffer = AddBuffer(source.name, ProgramRole::kInput,
                         DenseLayout(source.dtype, {batch, seq + source.extra}));
      buffers_.back().source = id;
    }
    View view = Whole(buffer);
    view.offset = input.shift;
    view.layout.dims[1] = seq;
    return view;
  }
  MR_FAIL("input {} has no source {}", input.name, input.source);
}

View ValueStorage::Scalars() {
  if (!scalars_)
    scalars_ = AddBuffer("scalars", ProgramRole::kScalars,
                         DenseLayout(DType::kU8, {static_cast<int64_t>(sizeof(StepScalars))}));
  return Whole(scalars_);
}

}  // namespace millrace
