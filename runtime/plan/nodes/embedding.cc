#include "runtime/plan/nodes/embedding.h"

#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/attention/cached_rows.h"

namespace millrace {
namespace {

void Gradient(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  if (n.inputs[2])  // rows beyond the sequence would stay undefined
    MR_CHECK_EQ(
        d.value(n.inputs[2]).dims[0], d.graph().whole_seq(),
        "node {}: rows of the position table against the sequence length: equal for training",
        n.label);
  std::vector<ValueId> inputs = {n.inputs[0], d_y};
  inputs.insert(inputs.end(), n.inputs.begin() + 3, n.inputs.end());  // documents
  d.Emit(kEmbeddingGradNode, std::move(inputs), {},
         {d.ParamGrad(n.inputs[1]), d.ParamGrad(n.inputs[2])}, n, ":grad");
}

void Lower(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  EmbedOp<View> op;
  op.tokens = storage.Read(node.inputs[0]);
  op.table = storage.Read(node.inputs[1]);
  op.positions = storage.Read(node.inputs[2]);
  if (op.positions) {
    op.positions = Rows(op.positions, 0, l.graph().whole_seq());
    if (node.inputs.size() > 3) op.documents = storage.Read(node.inputs[3]);
    op.rows = l.graph().context_rows();
  }
  const View out = storage.Write(node.outputs[0]);
  op.scalars = storage.Scalars();
  for (const RowStrip& strip : StripsOf(l.graph(), l.graph().value(node.outputs[0]))) {
    op.out = Rows(out, strip.begin, strip.rows);
    op.row_begin = strip.first;
    l.Push(op, node);
  }
}

void LowerGrad(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  EmbedGradOp<View> op;
  op.tokens = storage.Read(node.inputs[0]);
  if (node.grads[1]) op.rows = l.graph().context_rows();
  if (node.inputs.size() > 2) op.documents = storage.Read(node.inputs[2]);
  op.scalars = storage.Scalars();
  const View d_out = storage.Read(node.inputs[1]);
  for (const RowStrip& strip : StripsOf(l.graph(), l.graph().value(node.inputs[1]))) {
    op.d_out = Rows(d_out, strip.begin, strip.rows);
    op.row_begin = strip.first;
    op.d_table = storage.Grad(node.grads[0], op.table_update);
    op.d_positions = storage.Grad(node.grads[1], op.positions_update);
    l.Push(op, node);
  }
}

}  // namespace

const NodeDef kEmbeddingNode{.name = "embedding", .gradient = Gradient, .lower = Lower};
const NodeDef kEmbeddingGradNode{.name = "embedding_grad", .lower = LowerGrad};

ValueId Embedding(ForwardBuilder& b, const std::string& table, const std::string& positions,
                  const std::string& label, const std::string& input) {
  const ValueId table_value = b.Param(table, label);
  const int64_t width = b.value(table_value).dims.back();
  const ValueId positions_value = b.OptionalParam(positions, label);
  if (positions_value) {
    const int64_t limit = b.RowsOfMatrix(positions_value, width, label);
    MR_CHECK_LE(b.cache() != nullptr ? b.cache()->length : b.graph().whole_seq(), limit,
                "node {}: sequence length against rows of {}", label, positions);
  }
  if (b.cache() != nullptr) return EmbedRows(b, table_value, positions_value, label);
  const ValueId out =
      b.NewActivation(label, {b.LocalRows(label), width}, {{b.row_axes(), AxisSet()}, {}});
  std::vector<ValueId> inputs = {b.Input(input, label), table_value, positions_value};
  if (positions_value) inputs = b.WithDocuments(std::move(inputs));
  b.Push(kEmbeddingNode, std::move(inputs), {out}, {}, label);
  return out;
}

}  // namespace millrace
