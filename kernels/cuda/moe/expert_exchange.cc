#include "kernels/cuda/moe/expert_exchange.h"

#include <limits>

#include "kernels/cuda/moe/expert_exchange_launch.h"
#include "kernels/cuda/views.h"
#include "kernels/ops/router_ops.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using namespace cuda;

// Rows of a piece, of `numel` in all.
int RowsOfPiece(int64_t numel, int64_t ranks, int64_t experts, const char* op) {
  MR_CHECK(ranks >= 1 && experts >= 1 && ranks * experts <= kMaxExperts,
           "{}: {} ranks with {} experts each", op, ranks, experts);
  MR_CHECK_LE(numel, std::numeric_limits<int32_t>::max(), "{}: rows of all pieces", op);
  return static_cast<int>(numel / ranks);
}

}  // namespace

void CudaExpertPieces(const ExpertPiecesOp<TensorView>& op, Stream& stream) {
  const int64_t ranks = op.counts.dim(0), experts = op.counts.dim(1);
  PiecesArgs args;
  args.rows = RowsOfPiece(op.piece_pairs.numel(), ranks, experts, "expert_pieces");
  args.ranks = static_cast<int>(ranks);
  args.experts = static_cast<int>(experts);
  args.offsets = IntsOf(op.offsets, ranks * experts + 1, "offsets");
  args.pairs = IntsOf(op.pairs, op.pairs.numel(), "pairs");
  args.piece_pairs = IntsOf(op.piece_pairs, op.piece_pairs.numel(), "piece_pairs");
  args.piece_slots = IntsOf(op.piece_slots, op.pairs.numel(), "piece_slots");
  args.counts = IntsOf(op.counts, ranks * experts, "counts");
  if (op.dropped.data != nullptr) {
    MR_CHECK_GE(args.rows, 1, "expert_pieces: rows of a piece");
    args.dropped = FloatsOf(op.dropped, 1, "dropped");
    args.accumulate = op.update == Update::kAccumulate;
  }
  LaunchExpertPieces(args, LaunchOn(stream));
}

void CudaReceivedSlots(const ReceivedSlotsOp<TensorView>& op, Stream& stream) {
  const int64_t ranks = op.counts.dim(0), experts = op.counts.dim(1);
  ReceivedArgs args;
  args.rows = RowsOfPiece(op.slots.numel(), ranks, experts, "received_slots");
  args.ranks = static_cast<int>(ranks);
  args.experts = static_cast<int>(experts);
  args.counts = IntsOf(op.counts, ranks * experts, "counts");
  args.offsets = IntsOf(op.offsets, experts + 1, "offsets");
  args.slots = IntsOf(op.slots, op.slots.numel(), "slots");
  args.rows_of = IntsOf(op.rows, op.slots.numel(), "rows");
  LaunchReceivedSlots(args, LaunchOn(stream));
}

}  // namespace millrace
