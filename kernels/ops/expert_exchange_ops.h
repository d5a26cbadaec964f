// Argument structs of the kernel ops that say where rows lie while ranks exchange them with the
// ranks that have their experts. Conventions as in model_ops.h, letters as in moe_ops.h.
//
// Ranks    n ranks have E/n neighbouring experts each: rank p those from p E/n on.
// Pieces   A rank has a piece of M rows for each rank: R * min(K, E/n) is the most that can be for
//          one, and M is that or less. Of piece p the first rows are live, those for the experts of
//          rank p in the order of the slots; the others are rows of zeros. An all-to-all exchanges
//          the pieces.
// Dropped  Pairs that their piece has no room for are not computed: what comes of the step is wrong
//          and must not be used. They are counted, and StepStatsOp sees to that.
// Order    Received rows become slots in the order (expert, rank that sent, token, k). Nothing
//          else decides it, so that bits depend on the operands alone.
// Between  x and its pieces rows go by DispatchOp and CombineOp, whose slots are rows of pieces;
//          between received pieces and slots by DispatchOp both ways.
#pragma once

#include <cstdint>

#include "kernels/ops/access.h"

namespace millrace {

// From what ExpertSlotsOp gives, with b(p) = offsets[p E/n], and end(e) the least of offsets[e] and
// b(p) + M, p the rank of the expert before e:
// piece_pairs[p M + i] = pairs[b(p) + i] for b(p) + i < end((p + 1) E/n), else -1: no row.
// piece_slots[r,k] = p M + i where piece_pairs[p M + i] = r K + k; the last row of the piece where
// there is no such i.
// counts[p,l] = end(p E/n + l + 1) - max(end(p E/n + l), b(p)).
// dropped[0] (=|+=) sum over p of b(p + 1) - end((p + 1) E/n).
// offsets i32 [E+1], pairs i32 [R*K], piece_pairs i32 [n*M], piece_slots i32 [R,K], counts i32
// [n,E/n], dropped f32 [1]; dense. Without dropped b(p + 1) - b(p) <= M, with it M >= 1.
struct ExpertPiecesAttrs {
  Update update = Update::kOverwrite;
  bool operator==(const ExpertPiecesAttrs&) const = default;
};
template <class V>
struct ExpertPiecesOp : ExpertPiecesAttrs {
  using Attrs = ExpertPiecesAttrs;
  static constexpr const char* kName = "expert_pieces";
  V offsets, pairs, piece_pairs, piece_slots, counts, dropped;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.offsets, Access::kRead, "offsets");
    f(s.pairs, Access::kRead, "pairs");
    f(s.piece_pairs, Access::kWrite, "piece_pairs");
    f(s.piece_slots, Access::kWrite, "piece_slots");
    f(s.counts, Access::kWrite, "counts");
    f(s.dropped, Updated{s.update}, "dropped");
  }
};

// Sorts the rows of n received pieces by expert, then by rank: counts[q,l] of rank q's piece are
// for this rank's expert l, in that order.
// offsets[l] = sum over l' < l and all q of counts[q,l'];
// slots[q M + i] = offsets[l] + sum over q' < q of counts[q',l] + i - sum over l' < l of
// counts[q,l'], of rows i for expert l; -1 of rows that are not live.
// rows[slots[j]] = j; from offsets[E/n] on rows is -1.
// counts i32 [n,E/n], offsets i32 [E/n+1], slots and rows i32 [n*M]; dense.
template <class V>
struct ReceivedSlotsOp : NoAttrs {
  using Attrs = NoAttrs;
  static constexpr const char* kName = "received_slots";
  V counts, offsets, slots, rows;
  template <class Self, class F>
  static void Visit(Self& s, F&& f) {
    f(s.counts, Access::kRead, "counts");
    f(s.offsets, Access::kWrite, "offsets");
    f(s.slots, Access::kWrite, "slots");
    f(s.rows, Access::kWrite, "rows");
  }
};

}  // namespace millrace
