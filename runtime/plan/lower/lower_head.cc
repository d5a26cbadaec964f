// The output matrix and the loss, by chunks of rows: the full logits never exist.
#include <fmt/core.h>

#include <algorithm>

#include "runtime/base/arithmetic.h"
#include "runtime/plan/lower/lowering.h"

namespace millrace {

int64_t LossChunkRows(Backend backend, int64_t rows, int64_t padded_vocab, DType logits) {
  if (backend == Backend::kCpu) return 512;
  constexpr int64_t kLogitsBytes = int64_t{1} << 30;
  constexpr int64_t kRowTile = 128;  // of a GEMM on Hopper
  const int64_t chunks =
      std::max<int64_t>(1, CeilDiv(rows * padded_vocab * Bytes(logits), kLogitsBytes));
  return std::max<int64_t>(kRowTile, RoundUp(CeilDiv(rows, chunks), kRowTile));
}

// By chunks of rows, through one buffer of logits; the gradient replaces the logits, and both
// products of it are taken at once. The weight gradient comes first: then the input gradient can
// replace the rows of x that it has just read.
void Lowering::HeadLoss(const Node& node) {
  const ValueId x_value = node.inputs[0], d_x_value = node.outputs[1];
  const bool gradient = static_cast<bool>(d_x_value);
  const View x = storage_.Read(x_value), weight = storage_.Read(node.inputs[1]),
             targets = storage_.Read(node.inputs[2]), loss = storage_.Write(node.outputs[0]);
  const int64_t rows = x.layout.dims[0], padded_vocab = weight.layout.dims[0];
  MR_CHECK_GE(options_.loss_chunk_rows, 0, "loss_chunk_rows");
  const int64_t wanted = options_.loss_chunk_rows > 0
                             ? options_.loss_chunk_rows
                             : LossChunkRows(options_.backend, rows, padded_vocab, x.layout.dtype);
  const int64_t chunk = std::min(wanted, rows);
  const View logits =
      storage_.Temporary("head/logits", DenseLayout(x.layout.dtype, {chunk, padded_vocab}));
  const bool in_place = gradient && storage_.CanReplace(x_value, d_x_value);
  const View d_x = in_place ? storage_.WriteOver(d_x_value, x_value) : storage_.Write(d_x_value);
  program_.choices.push_back(fmt::format("{}: {} chunks of {} rows of logits{}", node.label,
                                         CeilDiv(rows, chunk), chunk,
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
    entropy.scalars = storage_.Scalars();
    Push(entropy, node, suffix);
    if (!gradient) continue;

    MatmulOp<View> d_weight;
    d_weight.a = Transposed(chunk_logits);
    d_weight.b = Rows(x, begin, n);
    d_weight.out = storage_.Grad(node.grads[0], d_weight.update);
    d_weight.rounding = Rounding::kOnce;
    Push(d_weight, node, ":d_weight" + suffix);

    MatmulOp<View> d_input;
    d_input.a = chunk_logits;
    d_input.b = weight;
    d_input.out = Rows(d_x, begin, n);
    Push(d_input, node, ":d_input" + suffix);
  }
}

void Lowering::HeadLogits(const Node& node) {
  const View x = storage_.Read(node.inputs[0]);
  SelectRowOp<View> select;
  select.x = x;
  select.scalars = storage_.Scalars();
  select.out = storage_.Temporary("head/row", DenseLayout(x.layout.dtype, {1, x.layout.dims[1]}));
  Push(select, node, ":row");
  MatmulOp<View> product;
  product.a = select.out;
  product.b = Transposed(storage_.Read(node.inputs[1]));
  product.out = storage_.Write(node.outputs[0]);
  Push(product, node);
}

}  // namespace millrace
