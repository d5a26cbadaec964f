#include "runtime/plan/nodes/sample.h"

#include <variant>
#include <vector>

#include "kernels/ops/sample_ops.h"
#include "runtime/plan/lower/lowering.h"

namespace millrace {
namespace {

// Of logits that the op before has widened, what they were: the same values in half of the bytes,
// which a GPU's blocks keep to themselves. That op goes: nobody else reads what is drawn from.
// Where one row is drawn, the product itself forms wide ones (lower/row_linears.h), unless it is in
// order.
View NarrowLogits(Lowering& l, const View& logits) {
  const auto* widen = std::get_if<CastOp<View>>(&l.last().op);
  if (l.options().backend != Backend::kCuda || widen == nullptr ||
      (logits.layout.dims[0] == 1 && !l.options().in_order) || widen->out.buffer != logits.buffer)
    return logits;
  View narrow = widen->x;
  narrow.layout = DenseLayout(narrow.layout.dtype, {logits.layout.dims[0], logits.layout.dims[1]});
  l.DropLast();
  return narrow;
}

void LowerSample(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  SampleOp<View> op;
  op.vocab = l.graph().vocab;
  op.in_order = l.options().in_order;
  op.logits = NarrowLogits(l, storage.Read(node.inputs[0]));
  op.params = Rows(storage.Read(node.inputs[1]), 0, op.logits.layout.dims[0]);
  op.token = storage.Write(node.outputs[0]);
  op.logprob = storage.Write(node.outputs[1]);
  op.top_ids = storage.Write(node.outputs[2]);
  op.top_logprobs = storage.Write(node.outputs[3]);
  l.Push(op, node);
}

}  // namespace

const NodeDef kSampleNode{.name = "sample", .lower = LowerSample};

void Sample(ForwardBuilder& b, ValueId logits, ValueId params, int64_t most,
            const std::string& label) {
  const std::vector<int64_t>& dims = b.value(logits).dims;
  MR_CHECK(dims.size() == 2 && b.graph().vocab <= dims[1], "node {}: logits of a vocabulary of {}",
           label, b.graph().vocab);
  const int64_t rows = dims[0];
  const Value& of_rows = b.value(params);
  MR_CHECK(of_rows.dims.size() == 2 && of_rows.dims[0] >= rows && of_rows.dims[1] == kSampleWords &&
               of_rows.dtype == DType::kI64,
           "node {}: params of {} rows", label, rows);
  MR_CHECK(most >= 0 && most <= kMaxSampleTop, "node {}: {} likeliest tokens of at most {}", label,
           most, kMaxSampleTop);
  std::vector<ValueId> outputs = {b.NewValue("token", ValueRole::kOutput, DType::kI32, {rows}),
                                  b.NewValue("logprob", ValueRole::kOutput, DType::kF32, {rows}),
                                  ValueId{}, ValueId{}};
  if (most > 0) {
    outputs[2] = b.NewValue("top_ids", ValueRole::kOutput, DType::kI32, {rows, most});
    outputs[3] = b.NewValue("top_logprobs", ValueRole::kOutput, DType::kF32, {rows, most});
  }
  b.Push(kSampleNode, {logits, params}, std::move(outputs), {}, label);
}

}  // namespace millrace
