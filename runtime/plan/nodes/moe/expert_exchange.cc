#include "runtime/plan/nodes/moe/expert_exchange.h"

#include <algorithm>
#include <cmath>

#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/moe/dispatch.h"

namespace millrace {
namespace {

struct PiecesAttrs {
  bool bounded = false;  // pieces may have no room for all rows
};

void GradientOfAllToAll(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  const ValueId d_x = d.NewGradient(n.inputs[0]);
  d.Emit(kAllToAllNode, {d_y, n.inputs[2], n.inputs[1]}, {d_x}, {}, n, ":grad");
  Contribute(d, n.inputs[0], d_x, n);
}

void GradientOfUnpack(Differentiator& d, const Node& n) { GradientOfMovedRows(d, n, kPackNode); }
void GradientOfPack(Differentiator& d, const Node& n) { GradientOfMovedRows(d, n, kUnpackNode); }

// Pieces lie one behind the other: to a communicator they are elements in a row.
void LowerAllToAll(Lowering& l, const Step& step) {
  AllToAllOp<View> op;
  static_cast<AllToAllAttrs&>(op) = Attrs<AllToAllAttrs>(*step.node);
  op.sent = InOneRow(l.storage().Read(step.node->inputs[0]));
  op.counts = InOneRow(l.storage().Read(step.node->inputs[1]));
  op.received = InOneRow(l.storage().Write(step.node->outputs[0]));
  l.Push(op, *step.node);
}

void LowerPieces(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ExpertPiecesOp<View> op;
  op.offsets = l.storage().Read(node.inputs[0]);
  op.pairs = l.storage().Read(node.inputs[1]);
  op.piece_pairs = l.storage().Write(node.outputs[0]);
  op.piece_slots = l.storage().Write(node.outputs[1]);
  op.counts = l.storage().Write(node.outputs[2]);
  if (Attrs<PiecesAttrs>(node).bounded) op.dropped = l.storage().Overflow(node.label + ".dropped");
  l.Push(op, node);
}

void LowerReceived(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ReceivedSlotsOp<View> op;
  op.counts = l.storage().Read(node.inputs[0]);
  op.offsets = l.storage().Write(node.outputs[0]);
  op.slots = l.storage().Write(node.outputs[1]);
  op.rows = l.storage().Write(node.outputs[2]);
  l.Push(op, node);
}

void LowerPack(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  DispatchOp<View> op;
  static_cast<DispatchAttrs&>(op) = Attrs<DispatchAttrs>(node);
  op.x = l.storage().Read(node.inputs[0]);
  op.weights = l.storage().Read(node.inputs[1]);
  op.pairs = l.storage().Read(node.inputs[4]);
  op.out = l.storage().Write(node.outputs[0]);
  op.slot_weights = l.storage().Write(node.outputs[1]);
  l.Push(op, node);
}

// Rows of a piece: of `pairs` pairs for all of `ranks` ranks, `most` at most for one.
int64_t RowsOfPiece(int64_t pairs, int64_t ranks, int64_t most, double capacity) {
  if (capacity <= 0) return most;
  const double rows = std::ceil(capacity * static_cast<double>(pairs) / static_cast<double>(ranks));
  return rows < static_cast<double>(most) ? static_cast<int64_t>(rows) : most;
}

// `sent`, `received`: counts of the live rows, absent where all are.
ValueId AllToAll(ForwardBuilder& b, const NodeDef& kind, AxisSet axes, ValueId x, ValueId sent,
                 ValueId received, const std::string& label) {
  const Value value = b.value(x);
  const ValueId out =
      b.NewValue(label, ValueRole::kActivation, value.dtype, value.dims, value.placement);
  const int64_t row = value.dims.size() > 1 ? value.dims[1] : 1;
  b.Push(kind, {x, sent, received}, {out}, AllToAllAttrs{axes, row}, label);
  return out;
}

}  // namespace

const NodeDef kExpertPiecesNode{.name = "expert_pieces", .lower = LowerPieces};
const NodeDef kAllToAllNode{.name = "all_to_all",
                            .recompute = RecomputeClass::kExchange,
                            .gradient = GradientOfAllToAll,
                            .lower = LowerAllToAll};
const NodeDef kAllToAllKeptNode{
    .name = "all_to_all_kept", .gradient = GradientOfAllToAll, .lower = LowerAllToAll};
const NodeDef kReceivedSlotsNode{.name = "received_slots", .lower = LowerReceived};
const NodeDef kUnpackNode{.name = "unpack_rows",
                          .recompute = RecomputeClass::kExchange,
                          .gradient = GradientOfUnpack,
                          .lower = LowerDispatch};
const NodeDef kPackNode{.name = "pack_rows", .gradient = GradientOfPack, .lower = LowerPack};

ExpertPlaces PlaceExperts(ForwardBuilder& b, const Routing& routing, AxisSet axes, double capacity,
                          const std::string& label) {
  axes = b.mesh().Wide(axes);
  if (axes.empty()) return {routing, routing};
  const std::vector<int64_t> tokens = b.value(routing.slots).dims;  // [R,K]
  const ValuePlacement placement = b.value(routing.slots).placement;
  const int64_t ranks = b.mesh().Size(axes), experts = b.value(routing.offsets).dims[0] - 1;
  MR_REQUIRE(ErrorCode::kConfig, experts % ranks == 0,
             "node {}: {} experts, which {} ranks of {} do not divide", label, experts, ranks,
             ToString(axes));
  const int64_t most = tokens[0] * std::min(tokens[1], experts / ranks),
                piece = RowsOfPiece(tokens[0] * tokens[1], ranks, most, capacity),
                rows = ranks * piece;
  const auto ints = [&](const char* name, std::vector<int64_t> dims) {
    return b.NewValue(label + name, ValueRole::kActivation, DType::kI32, std::move(dims),
                      placement);
  };
  ExpertPlaces places{routing, routing};
  places.pieces.offsets = {};
  places.pieces.pairs = ints(".piece_pairs", {rows});
  places.pieces.slots = ints(".piece_slots", tokens);
  places.sent_counts = ints(".counts", {ranks, experts / ranks});
  b.Push(kExpertPiecesNode, {routing.offsets, routing.pairs},
         {places.pieces.pairs, places.pieces.slots, places.sent_counts}, PiecesAttrs{piece < most},
         label + ".pieces");
  places.received_counts =
      AllToAll(b, kAllToAllKeptNode, axes, places.sent_counts, {}, {}, label + ".received_counts");
  places.received.split = axes;
  places.received.expected = tokens[0] * tokens[1];
  places.received.offsets = ints(".offsets", {experts / ranks + 1});
  places.received.slots = ints(".slots", {rows, 1});
  places.received.pairs = ints(".rows", {rows});
  b.Push(kReceivedSlotsNode, {places.received_counts},
         {places.received.offsets, places.received.slots, places.received.pairs}, {},
         label + ".slots");
  return places;
}

Dispatched SendToExperts(ForwardBuilder& b, const Dispatched& sent, const ExpertPlaces& places,
                         const std::string& label) {
  const Routing& at = places.received;
  if (at.split.empty()) return sent;
  const ValueId rows = AllToAll(b, kAllToAllNode, at.split, sent.rows, places.sent_counts,
                                places.received_counts, label + ".exchange");
  const ValueId weights = AllToAll(b, kAllToAllKeptNode, at.split, sent.weights, places.sent_counts,
                                   places.received_counts, label + ".exchange_weights");
  const ValuePlacement placement = b.value(rows).placement;
  const Dispatched out{b.NewActivation(label, b.value(rows).dims, placement),
                       b.NewStatistic(label + ".weights", b.value(weights).dims, placement)};
  b.Push(kUnpackNode, {rows, weights, at.pairs, at.offsets, at.slots}, {out.rows, out.weights},
         DispatchAttrs{1, at.expected}, label + ".unpack");
  return out;
}

ValueId SendBack(ForwardBuilder& b, ValueId y, const ExpertPlaces& places,
                 const std::string& label) {
  const Routing& at = places.received;
  if (at.split.empty()) return y;
  const ValueId pieces = b.NewActivation(label + ".pieces", b.value(y).dims, b.value(y).placement);
  b.Push(kPackNode, {y, {}, at.pairs, at.offsets, at.slots}, {pieces, {}},
         DispatchAttrs{1, at.expected}, label + ".pack");
  return AllToAll(b, kAllToAllNode, at.split, pieces, places.received_counts, places.sent_counts,
                  label + ".exchange");
}

}  // namespace millrace
