#include "runtime/plan/nodes/attention/documents.h"

#include "runtime/plan/lower/lowering.h"

namespace millrace {
namespace {

// What lies in the half of the input that a step's parity names: so that those who read it need not
// know of halves.
void Lower(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  TakeInputOp<View> op;
  op.x = l.storage().Read(node.inputs[0]);
  op.out = l.storage().Write(node.outputs[0]);
  op.scalars = l.storage().Scalars();
  l.Push(op, node);
}

}  // namespace

const NodeDef kDocumentsNode{.name = "documents", .lower = Lower};

void Documents(ForwardBuilder& b, const std::string& input) {
  const std::string label = "embed/" + input;
  MR_REQUIRE(ErrorCode::kConfig, b.graph().context() == 1,
             "data.document_mask is true and parallel.context {}; sequences that ranks share have "
             "no documents yet, so 1 is allowed",
             b.graph().context());
  const ValueId given = b.Input(input, label);
  const ValueId documents =
      b.NewValue(input, ValueRole::kActivation, DType::kI32, {b.shape().batch, b.shape().seq});
  b.Push(kDocumentsNode, {given}, {documents}, {}, label);
  b.SetDocuments(documents);
}

}  // namespace millrace
