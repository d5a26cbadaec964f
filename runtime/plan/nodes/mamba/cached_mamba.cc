#include "runtime/plan/nodes/mamba/cached_mamba.h"

#include <utility>

#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/attention/cached_rows.h"

namespace millrace {
namespace {

void LowerConv(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  const auto& attrs = Attrs<MambaAttrs>(node);
  MambaConvRowsOp<View> op;
  op.dt_min = attrs.dt_min, op.dt_max = attrs.dt_max;
  const View rows = storage.Read(node.inputs[0]);
  op.x = ColumnsOf(rows, attrs.inner(), attrs.conv_columns());
  op.dt_raw = ColumnsOf(rows, attrs.inner() + attrs.conv_columns(), attrs.heads);
  op.weight = storage.Read(node.inputs[1]);
  op.bias = storage.Read(node.inputs[2]);
  op.dt_bias = storage.Read(node.inputs[3]);
  op.at = StateOfRows(l, node.inputs[4], OfRow::kPosition);
  op.slots = StateOfRows(l, node.inputs[4], OfRow::kSlot);
  op.inputs = storage.Read(node.inputs[5]);
  op.out = storage.Write(node.outputs[0]);
  op.dt = storage.Write(node.outputs[1]);
  l.Push(op, node);
}

void LowerScan(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  const auto& attrs = Attrs<MambaAttrs>(node);
  SsdScanRowsOp<View> op;
  op.groups = attrs.groups, op.states = attrs.state, op.chunk = attrs.chunk;
  op.length = l.graph().cache->length;
  op.xbc = storage.Read(node.inputs[0]);
  op.dt = storage.Read(node.inputs[1]);
  op.a_log = storage.Read(node.inputs[2]);
  op.d = storage.Read(node.inputs[3]);
  op.at = StateOfRows(l, node.inputs[4], OfRow::kPosition);
  op.slots = StateOfRows(l, node.inputs[4], OfRow::kSlot);
  op.state = storage.Read(node.inputs[5]);
  op.rows = storage.Read(node.inputs[6]);
  op.steps = storage.Read(node.inputs[7]);
  op.out = storage.Write(node.outputs[0]);
  l.Push(op, node);
}

}  // namespace

const NodeDef kMambaConvRowsNode{.name = "mamba_conv_rows", .lower = LowerConv};
const NodeDef kSsdScanRowsNode{.name = "ssd_scan_rows", .lower = LowerScan};

void PushConvRows(ForwardBuilder& b, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
                  const MambaAttrs& attrs, const std::string& label) {
  const int64_t taps = b.value(inputs[1]).dims[1];
  inputs.push_back(b.cache()->rows_state);
  inputs.push_back(b.State("conv/" + label, ValueRole::kCache, b.compute(),
                           {b.cache()->slots, taps, attrs.conv_columns()}));
  b.Push(kMambaConvRowsNode, std::move(inputs), std::move(outputs), attrs, label);
}

void PushScanRows(ForwardBuilder& b, std::vector<ValueId> inputs, ValueId output,
                  const MambaAttrs& attrs, const std::string& label) {
  const auto state = [&](const char* name, DType dtype, std::vector<int64_t> dims) {
    dims.insert(dims.begin(), b.cache()->slots);
    inputs.push_back(b.State(name + label, ValueRole::kCache, dtype, std::move(dims)));
  };
  inputs.push_back(b.cache()->rows_state);
  state("state/", DType::kF32, {attrs.heads, attrs.head_dim, attrs.state});
  state("rows/", b.compute(), {attrs.chunk, attrs.conv_columns()});
  state("steps/", DType::kF32, {attrs.chunk, attrs.heads});
  b.Push(kSsdScanRowsNode, std::move(inputs), {output}, attrs, label);
}

}  // namespace millrace
