#include "kernels/cpu/moe/expert_exchange.h"

#include <algorithm>

#include "kernels/cpu/moe/expert_rows.h"
#include "runtime/base/error.h"

namespace millrace::cpu {

void ExpertPieces(const ExpertPiecesOp<TensorView>& op, Stream&) {
  const int64_t ranks = op.counts.dim(0), experts = op.counts.dim(1), pairs = op.pairs.numel(),
                rows = op.piece_pairs.numel() / ranks;
  CheckInts(op.offsets, ranks * experts + 1, "offsets");
  CheckInts(op.pairs, pairs, "pairs");
  CheckInts(op.piece_pairs, ranks * rows, "piece_pairs");
  CheckInts(op.piece_slots, pairs, "piece_slots");
  CheckInts(op.counts, ranks * experts, "counts");
  const bool bounded = op.dropped.data != nullptr;
  MR_CHECK(!bounded || (rows >= 1 && op.dropped.dtype() == DType::kF32 && op.dropped.numel() == 1),
           "expert_pieces: pieces of {} rows, dropped {}", rows, ToString(op.dropped.layout));
  const int32_t* offsets = op.offsets.as<int32_t>();
  int64_t dropped = 0;
  for (int64_t p = 0; p < ranks; ++p) {
    const int64_t begin = offsets[p * experts], wanted = offsets[(p + 1) * experts] - begin,
                  live = std::min(wanted, rows);
    MR_CHECK(wanted >= 0 && (bounded || wanted <= rows),
             "expert_pieces: {} rows for rank {}, of {} at most", wanted, p, rows);
    dropped += wanted - live;
    const auto end = [&](int64_t e) { return std::min<int64_t>(offsets[e], begin + live); };
    for (int64_t e = p * experts; e < (p + 1) * experts; ++e)
      op.counts.as<int32_t>()[e] = static_cast<int32_t>(end(e + 1) - end(e));
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = p * rows + i;
      const int32_t pair = i < live ? op.pairs.as<int32_t>()[begin + i] : -1;
      op.piece_pairs.as<int32_t>()[at] = pair;
      if (pair >= 0) op.piece_slots.as<int32_t>()[pair] = static_cast<int32_t>(at);
    }
    for (int64_t i = live; i < wanted; ++i)
      op.piece_slots.as<int32_t>()[op.pairs.as<int32_t>()[begin + i]] =
          static_cast<int32_t>((p + 1) * rows - 1);
  }
  if (!bounded) return;
  float& sum = *op.dropped.as<float>();
  sum = (op.update == Update::kAccumulate ? sum : 0.0f) + static_cast<float>(dropped);
}

void ReceivedSlots(const ReceivedSlotsOp<TensorView>& op, Stream&) {
  const int64_t ranks = op.counts.dim(0), experts = op.counts.dim(1),
                rows = op.slots.numel() / ranks;
  CheckInts(op.counts, ranks * experts, "counts");
  CheckInts(op.offsets, experts + 1, "offsets");
  CheckInts(op.slots, ranks * rows, "slots");
  CheckInts(op.rows, ranks * rows, "rows");
  int32_t* slots = op.slots.as<int32_t>();
  std::fill_n(slots, ranks * rows, -1);
  std::fill_n(op.rows.as<int32_t>(), ranks * rows, -1);
  int32_t slot = 0;
  for (int64_t l = 0; l < experts; ++l) {
    op.offsets.as<int32_t>()[l] = slot;
    for (int64_t q = 0; q < ranks; ++q) {
      const int32_t* counts = op.counts.as<int32_t>() + q * experts;
      int64_t row = 0;  // of the piece
      for (int64_t before = 0; before < l; ++before) row += counts[before];
      MR_CHECK(counts[l] >= 0 && row + counts[l] <= rows,
               "received_slots: {} rows of rank {} behind {}, of {} at most", counts[l], q, row,
               rows);
      for (const int64_t end = row + counts[l]; row < end; ++row, ++slot) {
        slots[q * rows + row] = slot;
        op.rows.as<int32_t>()[slot] = static_cast<int32_t>(q * rows + row);
      }
    }
  }
  op.offsets.as<int32_t>()[experts] = slot;
}

}  // namespace millrace::cpu
