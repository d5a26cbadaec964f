// Second half of Lower: a buffer for every value, results in place where nobody reads the old contents
// afterwards, kernel ops over views.
#include "runtime/plan/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/step_scalars.h"
#include "runtime/plan/fusion.h"

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

View Transposed(View view) {
  std::swap(view.layout.dims[0], view.layout.dims[1]);
  std::swap(view.layout.strides[0], view.layout.strides[1]);
  return view;
}

// Rows [begin, begin + rows) of a 2-D view.
View Rows(View view, int64_t begin, int64_t rows) {
  view.offset += begin * view.layout.strides[0];
  view.layout.dims[0] = rows;
  return view;
}

Shape ShapeOf(const View& view) { return Shape{.layout = view.layout, .present = static_cast<bool>(view)}; }

// Why the backend cannot run the op; "" when it can, and for ops that every backend must run.
std::string Refusal(const MatmulOp<View>& op, Backend backend) {
  return WhyUnsupported(ConvertOp<MatmulOp, View, Shape>(op, ShapeOf), backend);
}
std::string Refusal(const AttentionOp<View>& op, Backend backend) {
  return WhyUnsupported(ConvertOp<AttentionOp, View, Shape>(op, ShapeOf), backend);
}
std::string Refusal(const RopeOp<View>& op, Backend backend) {
  return WhyUnsupported(ConvertOp<RopeOp, View, Shape>(op, ShapeOf), backend);
}
template <template <class> class Op>
std::string Refusal(const Op<View>&, Backend) {
  return "";
}

class Lowering {
 public:
  Lowering(const SemanticGraph& graph, const LowerOptions& options)
      : graph_(graph),
        options_(options),
        storage_(graph.values.size()),
        last_read_(graph.values.size(), -1),
        contributed_(graph.values.size(), false) {}

  Program Run() &&;

 private:
  void LowerSteps(const std::vector<Step>& steps, std::vector<ProgramOp>& ops);
  void LowerStep(const Step& step);
  void Embedding(const Node& node);
  void EmbeddingGrad(const Node& node);
  void Norm(const Step& step);
  void NormGrad(const Step& step);
  void Linear(const Step& step);
  void Attention(const Node& node);
  void AttentionGrad(const Node& node);
  void Rope(const Node& node, RopeDirection direction);
  void Add(const Node& node);
  void ActivationGrad(const Node& node);
  void HeadLoss(const Node& node);
  void HeadLogits(const Node& node);

  const Value& value(ValueId id) const { return graph_.value(id); }
  BufferId& StorageOf(ValueId id) { return storage_[static_cast<size_t>(id.value)]; }
  BufferId AddBuffer(std::string name, ProgramRole role, Layout layout, ParamId param = {});
  View WholeBuffer(BufferId id) const {
    return View{.buffer = id, .layout = program_.buffers[static_cast<size_t>(id.value)].layout};
  }
  View ViewOf(BufferId buffer, ValueId id) const {
    return View{.buffer = buffer, .layout = DenseLayoutOf(value(id).dtype, value(id).dims)};
  }
  // Absent values give absent views.
  View Read(ValueId id);
  View Write(ValueId id);
  View WriteOver(ValueId id, ValueId old);
  // The view of a parameter's gradient, and whether this op is the first to contribute to it.
  View Grad(ValueId id, Update& update);
  bool LastReadHere(ValueId id) const;
  // May `id` be written over `old`: same bytes, an activation, and never read after this step?
  bool CanReplace(ValueId old, ValueId id) const;
  View TokenView(int64_t offset);
  View Scalars();
  // Heads [first, first + heads) of a fused row of qkv, as [B, T, heads, D].
  View HeadsOf(View qkv, const NodeAttrs& attrs, int64_t first, int64_t heads) const;

  template <class Op>
  void Push(Op op, const Node& node, const std::string& suffix = "");
  void Choose(const Node& node, const std::string& what) {
    program_.choices.push_back(node.label + ": " + what);
  }

  const SemanticGraph& graph_;
  const LowerOptions& options_;
  Program program_;
  std::vector<ProgramOp>* ops_ = nullptr;
  std::vector<BufferId> storage_;  // by value
  std::vector<int> last_read_;     // by value: position of the last step that reads it; -1 never
  std::vector<char> contributed_;  // by value: a parameter gradient with a first contribution
  BufferId tokens_, scalars_;
  int position_ = 0;
};

BufferId Lowering::AddBuffer(std::string name, ProgramRole role, Layout layout, ParamId param) {
  program_.buffers.push_back(
      ProgramBuffer{.name = std::move(name), .role = role, .layout = layout, .param = param});
  return BufferId{static_cast<int32_t>(program_.buffers.size()) - 1};
}

ProgramRole RoleOf(ValueRole role) {
  switch (role) {
    case ValueRole::kActivation:
      return ProgramRole::kActivation;
    case ValueRole::kParam:
      return ProgramRole::kParam;
    case ValueRole::kParamGrad:
      return ProgramRole::kParamGrad;
    case ValueRole::kTokens:
    case ValueRole::kTargets:
      return ProgramRole::kTokens;
    case ValueRole::kConstant:
      return ProgramRole::kConstant;
    case ValueRole::kLoss:
      return ProgramRole::kLoss;
    case ValueRole::kLogits:
      return ProgramRole::kLogits;
  }
  return ProgramRole::kActivation;
}

View Lowering::Read(ValueId id) {
  if (!id) return {};
  switch (value(id).role) {
    case ValueRole::kTokens:
      return TokenView(0);
    case ValueRole::kTargets:
      return TokenView(1);
    case ValueRole::kParam:
      if (!StorageOf(id)) return Write(id);
      break;
    default:
      break;
  }
  MR_CHECK(StorageOf(id), "value {} is read before it is written", value(id).name);
  return ViewOf(StorageOf(id), id);
}

View Lowering::Write(ValueId id) {
  if (!id) return {};
  const Value& v = value(id);
  BufferId& storage = StorageOf(id);
  if (!storage) storage = AddBuffer(v.name, RoleOf(v.role), DenseLayoutOf(v.dtype, v.dims), v.param);
  return ViewOf(storage, id);
}

View Lowering::WriteOver(ValueId id, ValueId old) {
  StorageOf(id) = StorageOf(old);
  return ViewOf(StorageOf(id), id);
}

View Lowering::Grad(ValueId id, Update& update) {
  if (!id) return {};
  char& contributed = contributed_[static_cast<size_t>(id.value)];
  update = contributed ? Update::kAccumulate : Update::kOverwrite;
  contributed = true;
  return Write(id);
}

bool Lowering::LastReadHere(ValueId id) const {
  return last_read_[static_cast<size_t>(id.value)] <= position_;
}

bool Lowering::CanReplace(ValueId old, ValueId id) const {
  return value(old).role == ValueRole::kActivation && value(old).dtype == value(id).dtype &&
         value(old).dims == value(id).dims && LastReadHere(old);
}

View Lowering::TokenView(int64_t offset) {
  const auto [batch, seq] = graph_.shape;
  if (!tokens_)
    tokens_ = AddBuffer("tokens", ProgramRole::kTokens, DenseLayout(DType::kI32, {batch, seq + 1}));
  View view = WholeBuffer(tokens_);
  view.offset = offset;
  view.layout.dims[1] = seq;
  return view;
}

View Lowering::Scalars() {
  if (!scalars_)
    scalars_ = AddBuffer("scalars", ProgramRole::kScalars,
                         DenseLayout(DType::kU8, {static_cast<int64_t>(sizeof(StepScalars))}));
  return WholeBuffer(scalars_);
}

View Lowering::HeadsOf(View qkv, const NodeAttrs& attrs, int64_t first, int64_t heads) const {
  const int64_t row = qkv.layout.dims[1];
  const auto [batch, seq] = graph_.shape;
  qkv.offset += first * attrs.head_dim;
  qkv.layout.rank = 4;
  qkv.layout.dims = {batch, seq, heads, attrs.head_dim};
  qkv.layout.strides = {seq * row, row, attrs.head_dim, 1};
  return qkv;
}

template <class Op>
void Lowering::Push(Op op, const Node& node, const std::string& suffix) {
  std::string label = node.label + suffix;
  const std::string why = Refusal(op, options_.backend);
  MR_REQUIRE(ErrorCode::kConfig, why.empty(), "{}: {}", label, why);
  ops_->push_back(ProgramOp{.op = std::move(op), .label = std::move(label), .unit = node.unit});
}

void Lowering::Embedding(const Node& node) {
  EmbedOp<View> op;
  op.tokens = Read(node.inputs[0]);
  op.table = Read(node.inputs[1]);
  op.positions = Read(node.inputs[2]);
  if (op.positions) op.positions = Rows(op.positions, 0, graph_.shape.seq);
  op.out = Write(node.outputs[0]);
  op.scalars = Scalars();
  Push(op, node);
}

void Lowering::EmbeddingGrad(const Node& node) {
  EmbedGradOp<View> op;
  op.tokens = Read(node.inputs[0]);
  op.d_out = Read(node.inputs[1]);
  op.d_table = Grad(node.grads[0], op.table_update);
  op.d_positions = Grad(node.grads[1], op.positions_update);
  op.scalars = Scalars();
  Push(op, node);
}

void Lowering::Norm(const Step& step) {
  const Node& node = *step.node;
  NormOp<View> op;
  op.kind = node.attrs.norm;
  op.eps = node.attrs.eps;
  if (step.add) {
    // The second term is the branch that was just computed; the first is the residual stream.
    const ValueId residual = step.add->inputs[0], branch = step.add->inputs[1], sum = step.add->outputs[0];
    op.x = Read(branch);
    op.residual = Read(residual);
    op.sum = CanReplace(branch, sum)     ? WriteOver(sum, branch)
             : CanReplace(residual, sum) ? WriteOver(sum, residual)
                                         : Write(sum);
  } else {
    op.x = Read(node.inputs[0]);
  }
  op.weight = Read(node.inputs[1]);
  op.bias = Read(node.inputs[2]);
  op.out = Write(node.outputs[0]);
  op.mean = Write(node.outputs[1]);
  op.rstd = Write(node.outputs[2]);
  Push(op, node);
}

void Lowering::NormGrad(const Step& step) {
  const Node& node = *step.node;
  NormGradOp<View> op;
  op.kind = node.attrs.norm;
  const ValueId d_out = node.inputs[0];
  op.d_out = Read(d_out);
  op.x = Read(node.inputs[1]);
  op.weight = Read(node.inputs[2]);
  op.mean = Read(node.inputs[3]);
  op.rstd = Read(node.inputs[4]);
  ValueId d_x = node.outputs[0], bypass;
  if (step.add) {
    bypass = step.add->inputs[0] == d_x ? step.add->inputs[1] : step.add->inputs[0];
    d_x = step.add->outputs[0];
    op.d_bypass = Read(bypass);
  }
  const bool over_bypass = bypass && bypass != d_out && CanReplace(bypass, d_x);
  const bool over_d_out = bypass != d_out && CanReplace(d_out, d_x);
  op.d_x = over_bypass ? WriteOver(d_x, bypass) : over_d_out ? WriteOver(d_x, d_out) : Write(d_x);
  op.d_weight = Grad(node.grads[0], op.weight_update);
  op.d_bias = Grad(node.grads[1], op.bias_update);
  Push(op, node);
}

void Lowering::Linear(const Step& step) {
  const Node& node = *step.node;
  MatmulOp<View> op;
  op.a = Read(node.inputs[0]);
  op.b = Transposed(Read(node.inputs[1]));
  op.bias = Read(node.inputs[2]);
  if (step.activation) {
    op.epilogue = op.bias ? Epilogue::kBiasGelu : Epilogue::kGelu;
    // Without a gradient nobody reads the value before the activation, and it is not kept.
    if (!LastReadHere(node.outputs[0])) op.pre = Write(node.outputs[0]);
    op.out = Write(step.activation->outputs[0]);
  } else {
    op.epilogue = op.bias ? Epilogue::kBias : Epilogue::kNone;
    op.out = Write(node.outputs[0]);
  }
  Push(op, node);
}

void Lowering::Attention(const Node& node) {
  const NodeAttrs& attrs = node.attrs;
  const View qkv = Read(node.inputs[0]);
  AttentionOp<View> op;
  op.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(attrs.head_dim)));
  op.q = HeadsOf(qkv, attrs, 0, attrs.heads);
  op.k = HeadsOf(qkv, attrs, attrs.heads, attrs.kv_heads);
  op.v = HeadsOf(qkv, attrs, attrs.heads + attrs.kv_heads, attrs.kv_heads);
  op.out = HeadsOf(Write(node.outputs[0]), attrs, 0, attrs.heads);
  op.lse = Write(node.outputs[1]);
  Push(op, node);
}

void Lowering::AttentionGrad(const Node& node) {
  const NodeAttrs& attrs = node.attrs;
  const View qkv = Read(node.inputs[0]), d_qkv = Write(node.outputs[0]);
  AttentionGradOp<View> op;
  op.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(attrs.head_dim)));
  op.q = HeadsOf(qkv, attrs, 0, attrs.heads);
  op.k = HeadsOf(qkv, attrs, attrs.heads, attrs.kv_heads);
  op.v = HeadsOf(qkv, attrs, attrs.heads + attrs.kv_heads, attrs.kv_heads);
  op.out = HeadsOf(Read(node.inputs[1]), attrs, 0, attrs.heads);
  op.lse = Read(node.inputs[2]);
  op.d_out = HeadsOf(Read(node.inputs[3]), attrs, 0, attrs.heads);
  op.d_q = HeadsOf(d_qkv, attrs, 0, attrs.heads);
  op.d_k = HeadsOf(d_qkv, attrs, attrs.heads, attrs.kv_heads);
  op.d_v = HeadsOf(d_qkv, attrs, attrs.heads + attrs.kv_heads, attrs.kv_heads);
  Push(op, node);
}

void Lowering::Rope(const Node& node, RopeDirection direction) {
  const ValueId in = node.inputs[0], out = node.outputs[0];
  MR_CHECK(CanReplace(in, out), "{}: rotates in place, but {} is read again later", node.label,
           value(in).name);
  RopeOp<View> op;
  op.direction = direction;
  op.table = Read(node.inputs[1]);
  op.x = HeadsOf(WriteOver(out, in), node.attrs, 0, node.attrs.heads + node.attrs.kv_heads);
  Push(op, node);
}

void Lowering::Add(const Node& node) {
  AddOp<View> op;
  const ValueId a = node.inputs[0], b = node.inputs[1], out = node.outputs[0];
  op.a = Read(a);
  op.b = Read(b);
  op.out = CanReplace(a, out) ? WriteOver(out, a) : CanReplace(b, out) ? WriteOver(out, b) : Write(out);
  Push(op, node);
}

void Lowering::ActivationGrad(const Node& node) {
  ActivationGradOp<View> op;
  op.kind = node.attrs.activation;
  const ValueId x = node.inputs[0], d_out = node.inputs[1], d_x = node.outputs[0];
  op.x = Read(x);
  op.d_out = Read(d_out);
  op.d_x = CanReplace(x, d_x)                                                         ? WriteOver(d_x, x)
           : node.attrs.activation == ActivationKind::kGelu && CanReplace(d_out, d_x) ? WriteOver(d_x, d_out)
                                                                                      : Write(d_x);
  Push(op, node);
}

// By chunks of rows, through one buffer of logits; the gradient replaces the logits, and both products of it
// are taken at once. The weight gradient comes first: then the input gradient can replace the rows of x that
// it has just read.
void Lowering::HeadLoss(const Node& node) {
  const ValueId x_value = node.inputs[0], d_x_value = node.outputs[1];
  const bool gradient = static_cast<bool>(d_x_value);
  const View x = Read(x_value), weight = Read(node.inputs[1]), targets = Read(node.inputs[2]),
             loss = Write(node.outputs[0]);
  const int64_t rows = x.layout.dims[0], padded_vocab = weight.layout.dims[0];
  MR_CHECK_GE(options_.loss_chunk_rows, 1, "loss_chunk_rows");
  const int64_t chunk = std::min(options_.loss_chunk_rows, rows);
  const View logits = WholeBuffer(
      AddBuffer("head/logits", ProgramRole::kActivation, DenseLayout(x.layout.dtype, {chunk, padded_vocab})));
  const bool in_place = gradient && CanReplace(x_value, d_x_value);
  const View d_x = in_place ? WriteOver(d_x_value, x_value) : Write(d_x_value);
  Choose(node, fmt::format("{} chunks of {} rows of logits{}", (rows + chunk - 1) / chunk, chunk,
                           in_place ? ", d_x in place of x" : ""));
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t n = std::min(chunk, rows - begin);
    const std::string suffix = fmt::format("[{}:{}]", begin, begin + n);
    const View chunk_logits = Rows(logits, 0, n);

    MatmulOp<View> product;
    product.a = Rows(x, begin, n);
    product.b = Transposed(weight);
    product.out = chunk_logits;
    Push(product, node, ":logits" + suffix);

    CrossEntropyOp<View> entropy;
    entropy.row_begin = begin;
    entropy.vocab = graph_.vocab;
    entropy.output = gradient ? LossOutput::kLossAndGradient : LossOutput::kLossOnly;
    entropy.loss_update = begin == 0 ? Update::kOverwrite : Update::kAccumulate;
    entropy.logits = chunk_logits;
    entropy.targets = targets;
    entropy.loss_sum = loss;
    entropy.scalars = Scalars();
    Push(entropy, node, suffix);
    if (!gradient) continue;

    MatmulOp<View> d_weight;
    d_weight.a = Transposed(chunk_logits);
    d_weight.b = Rows(x, begin, n);
    d_weight.out = Grad(node.grads[0], d_weight.update);
    Push(d_weight, node, ":d_weight" + suffix);

    MatmulOp<View> d_input;
    d_input.a = chunk_logits;
    d_input.b = weight;
    d_input.out = Rows(d_x, begin, n);
    Push(d_input, node, ":d_input" + suffix);
  }
}

void Lowering::HeadLogits(const Node& node) {
  const View x = Read(node.inputs[0]);
  SelectRowOp<View> select;
  select.x = x;
  select.scalars = Scalars();
  select.out = WholeBuffer(
      AddBuffer("head/row", ProgramRole::kActivation, DenseLayout(x.layout.dtype, {1, x.layout.dims[1]})));
  Push(select, node, ":row");
  MatmulOp<View> product;
  product.a = select.out;
  product.b = Transposed(Read(node.inputs[1]));
  product.out = Write(node.outputs[0]);
  Push(product, node);
}

void Lowering::LowerStep(const Step& step) {
  const Node& node = *step.node;
  switch (node.kind) {
    case NodeKind::kEmbedding:
      return Embedding(node);
    case NodeKind::kEmbeddingGrad:
      return EmbeddingGrad(node);
    case NodeKind::kNorm:
      return Norm(step);
    case NodeKind::kNormGrad:
      return NormGrad(step);
    case NodeKind::kLinear:
      return Linear(step);
    case NodeKind::kLinearGradInput: {
      MatmulOp<View> op;
      op.a = Read(node.inputs[0]);
      op.b = Read(node.inputs[1]);
      op.out = Write(node.outputs[0]);
      return Push(op, node);
    }
    case NodeKind::kLinearGradWeight: {
      MatmulOp<View> op;
      op.a = Transposed(Read(node.inputs[0]));
      op.b = Read(node.inputs[1]);
      op.out = Grad(node.grads[0], op.update);
      return Push(op, node);
    }
    case NodeKind::kBiasGrad: {
      ColumnSumOp<View> op;
      op.x = Read(node.inputs[0]);
      op.out = Grad(node.grads[0], op.update);
      return Push(op, node);
    }
    case NodeKind::kRopeTable: {
      RopeTableOp<View> op;
      op.theta = node.attrs.rope_theta;
      op.scaling = node.attrs.rope_scaling;
      op.table = Write(node.outputs[0]);
      return Push(op, node);
    }
    case NodeKind::kRope:
      return Rope(node, RopeDirection::kForward);
    case NodeKind::kRopeGrad:
      return Rope(node, RopeDirection::kInverse);
    case NodeKind::kAttention:
      return Attention(node);
    case NodeKind::kAttentionGrad:
      return AttentionGrad(node);
    case NodeKind::kAdd:
      return Add(node);
    case NodeKind::kActivation: {
      ActivationOp<View> op;
      op.kind = node.attrs.activation;
      op.x = Read(node.inputs[0]);
      op.out = Write(node.outputs[0]);
      return Push(op, node);
    }
    case NodeKind::kActivationGrad:
      return ActivationGrad(node);
    case NodeKind::kHeadLoss:
      return HeadLoss(node);
    case NodeKind::kHeadLogits:
      return HeadLogits(node);
  }
}

void Lowering::LowerSteps(const std::vector<Step>& steps, std::vector<ProgramOp>& ops) {
  ops_ = &ops;
  for (const Step& step : steps) {
    LowerStep(step);
    ++position_;
  }
}

Program Lowering::Run() && {
  FusedGraph fused = Fuse(graph_, options_);
  program_.choices = std::move(fused.choices);
  int position = 0;
  for (const std::vector<Step>* steps : {&fused.prologue, &fused.forward, &fused.backward})
    for (const Step& step : *steps) {
      for (const ValueId id : ReadsOf(step)) last_read_[static_cast<size_t>(id.value)] = position;
      ++position;
    }
  LowerSteps(fused.prologue, program_.prologue);
  LowerSteps(fused.forward, program_.forward);
  LowerSteps(fused.backward, program_.backward);
  return std::move(program_);
}

}  // namespace

Program Lower(const SemanticGraph& graph, const LowerOptions& options) {
  return Lowering(graph, options).Run();
}

}  // namespace millrace
