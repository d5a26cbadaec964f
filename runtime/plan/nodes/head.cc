#include "runtime/plan/nodes/head.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/base/arithmetic.h"
#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/exchange.h"

namespace millrace {
namespace {

// Everything was computed in the forward, while the logits existed.
void Gradient(Differentiator& d, const Node& n) {
  if (n.outputs[1]) Contribute(d, n.inputs[0], n.outputs[1], n);
}

// Of each strip in turn, `rows` rows at a time.
std::vector<RowStrip> ChunksOf(const std::vector<RowStrip>& strips, int64_t rows) {
  std::vector<RowStrip> chunks;
  for (const RowStrip& strip : strips)
    for (int64_t at = 0; at < strip.rows; at += rows) {
      RowStrip& chunk = chunks.emplace_back(strip);
      chunk.begin += at;
      chunk.rows = std::min(rows, strip.rows - at);
      chunk.first.base += at;
    }
  return chunks;
}

// By chunks of rows, through one buffer of logits; the gradient replaces the logits, and both
// products of it are taken at once. The weight gradient comes first: then the input gradient can
// replace the rows of x that it has just read.
void LowerLoss(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  const ValueId x_value = node.inputs[0], d_x_value = node.outputs[1];
  const bool gradient = static_cast<bool>(d_x_value);
  const View x = storage.Read(x_value), weight = storage.Read(node.inputs[1]),
             targets = storage.Read(node.inputs[2]), loss = storage.Write(node.outputs[0]);
  const int64_t rows = x.layout.dims[0], padded_vocab = weight.layout.dims[0];
  MR_CHECK_GE(l.options().loss_chunk_rows, 0, "loss_chunk_rows");
  const int64_t wanted =
      l.options().loss_chunk_rows > 0
          ? l.options().loss_chunk_rows
          : LossChunkRows(l.options().backend, rows, padded_vocab, x.layout.dtype);
  const int64_t chunk = std::min(wanted, rows);
  const LossId loss_id = l.graph().value(node.outputs[0]).loss;
  const LossSpec& spec = l.graph().losses[static_cast<size_t>(loss_id.value)];
  const View logits =
      storage.Temporary(loss_id.value == 0 ? "head/logits" : "head/logits." + spec.name,
                        DenseLayout(x.layout.dtype, {chunk, padded_vocab}));
  const bool in_place = gradient && storage.CanReplace(x_value, d_x_value);
  const View d_x = in_place ? storage.WriteOver(d_x_value, x_value) : storage.Write(d_x_value);
  const std::vector<RowStrip> chunks =
      ChunksOf(StripsOf(l.graph(), l.graph().value(x_value)), chunk);
  l.Choose(fmt::format("{}: {} chunks of {} rows of logits{}", node.label, chunks.size(), chunk,
                       in_place ? ", d_x in place of x" : ""));
  for (const RowStrip& part : chunks) {
    const int64_t begin = part.begin, n = part.rows;
    const std::string suffix = fmt::format("[{}:{}]", begin, begin + n);
    const View chunk_logits = Rows(logits, 0, n);

    MatmulOp<View> product;
    product.a = Rows(x, begin, n);
    product.b = Transposed(weight);
    product.out = chunk_logits;
    l.Push(product, node, ":logits" + suffix);

    CrossEntropyOp<View> entropy;
    entropy.row_begin = part.first;
    entropy.vocab = l.graph().vocab;
    entropy.loss_weight = spec.weight;
    entropy.output = gradient ? LossOutput::kLossAndGradient : LossOutput::kLossOnly;
    entropy.loss_update = begin == 0 ? Update::kOverwrite : Update::kAccumulate;
    entropy.logits = chunk_logits;
    entropy.targets = targets;
    entropy.loss_sum = loss;
    entropy.scalars = storage.Scalars();
    l.Push(entropy, node, suffix);
    if (!gradient) continue;

    MatmulOp<View> d_weight;
    d_weight.a = Transposed(chunk_logits);
    d_weight.b = Rows(x, begin, n);
    d_weight.out = storage.Grad(node.grads[0], d_weight.update);
    d_weight.rounding = Rounding::kOnce;
    l.Push(d_weight, node, ":d_weight" + suffix);

    MatmulOp<View> d_input;
    d_input.a = chunk_logits;
    d_input.b = weight;
    d_input.out = Rows(d_x, begin, n);
    l.Push(d_input, node, ":d_input" + suffix);
  }
}

void LowerLogits(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  View x = storage.Read(node.inputs[0]);
  if (const int64_t ranks = l.graph().context(); ranks > 1) {  // rank by rank: Engine::Run
    const auto [dims, dtype] = std::pair{x.layout.dims, x.layout.dtype};
    AllGatherOp<View> gather;
    gather.axes = Axis::kContext;
    gather.shard = x;
    gather.shard.layout = DenseLayout(dtype, {dims[0] * dims[1]});
    x = storage.Temporary("head/all_rows", DenseLayout(dtype, {ranks * dims[0], dims[1]}));
    gather.full = x;
    gather.full.layout = DenseLayout(dtype, {ranks * dims[0] * dims[1]});
    l.Push(gather, node, ":rows");
  }
  SelectRowOp<View> select;
  select.x = x;
  select.scalars = storage.Scalars();
  select.out = storage.Temporary("head/row", DenseLayout(x.layout.dtype, {1, x.layout.dims[1]}));
  l.Push(select, node, ":row");
  MatmulOp<View> product;
  product.a = select.out;
  product.b = Transposed(storage.Read(node.inputs[1]));
  product.out = storage.Write(node.outputs[0]);
  l.Push(product, node);
}

// Padded rows are not asked for.
FlopsPerToken Flops(const SemanticGraph& graph, const Node& node) {
  const double flops = 2.0 * static_cast<double>(graph.vocab) *
                       static_cast<double>(graph.value(node.inputs[1]).dims[1]);
  return {flops, flops};
}

}  // namespace

const NodeDef kHeadLossNode{
    .name = "head_loss", .gradient = Gradient, .lower = LowerLoss, .flops = Flops};
const NodeDef kHeadLogitsNode{.name = "head_logits", .lower = LowerLogits};

void Head(ForwardBuilder& b, ValueId x, const std::string& weight, HeadMode mode,
          const std::string& loss_name) {
  const std::string label = mode == HeadMode::kLogits ? "head/logits" : "head/" + loss_name;
  // The row that generation asks for may be anybody's.
  if (mode == HeadMode::kLogits) x = GatherRows(b, x, b.value(x).placement.Cut(0), "head/rows");
  b.CheckRows(x, label);
  const int64_t width = b.Columns(x, label);
  const ValueId weight_value = b.Param(weight, label);
  const int64_t padded_vocab = b.RowsOfMatrix(weight_value, width, label);
  MR_CHECK_LE(b.graph().vocab, padded_vocab, "node {}: vocabulary against the stored rows of {}",
              label, weight);
  if (mode == HeadMode::kLogits) {
    const ValueId logits = b.NewValue("logits", ValueRole::kLogits, DType::kF32, {1, padded_vocab});
    return b.Push(kHeadLogitsNode, {x, weight_value}, {logits}, {}, label);
  }
  const LossId id = b.Loss(loss_name, label);
  const LossSpec& spec = b.graph().losses[static_cast<size_t>(id.value)];
  const ValueId targets = b.Input(spec.targets, label), loss = b.NewLoss(id, label);
  std::vector<ValueId> outputs = {loss, ValueId{}}, grads;
  if (mode == HeadMode::kTrainLoss) {
    outputs[1] = b.NewActivation(fmt::format("d({})", b.value(x).name), {b.RowsOf(x, label), width},
                                 b.value(x).placement);
    grads = {b.ParamGrad(weight_value)};
  }
  b.Push(kHeadLossNode, {x, weight_value, targets}, std::move(outputs), {}, label,
         std::move(grads));
}

}  // namespace millrace
