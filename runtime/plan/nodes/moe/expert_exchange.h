// Rows on their way to the ranks that have their experts, and back. Along the expert axis, or that
// and the tensor axis, of n ranks in all, each has E/n experts and rows of its own: along expert of
// its own sequences, along tensor the part that it has between blocks. For all other parameters
// expert is a data axis.
//
// kExpertPiecesNode  in: offsets [E+1], pairs
//                    out: piece_pairs i32 [n M], piece_slots i32 [R,K], counts i32 [n,E/n]
// kAllToAllNode      in: x, n equal pieces, counts? of the rows that are live in what this rank
//                    sends, and in what it receives   out: y: piece r from rank r
//                    The same with the counts exchanged is its gradient.
// kAllToAllKeptNode  the same of a value that is kept for the backward, because it is small
// kReceivedSlotsNode in: counts
//                    out: offsets [E/n+1], slots i32 [n M,1], rows i32 [n M]
// kUnpackNode        in: pieces [n M,C], weights [n M]?, rows, offsets, slots
//                    out: rows [n M,C] in the order of the experts, weights [n M]?
// kPackNode          the transpose, in: rows [n M,C], weights?, rows, offsets, slots
//                    out: pieces, weights?
//
// kernels/ops/expert_exchange_ops.h has M, the order and the formulas. Shapes hold the most that
// can come: received rows may be n min(K,E/n) / K times as many as a rank sends; or less, where a
// capacity is given: a step in which a piece has no room for all of its rows is not applied. They
// are transient: in the backward rows are dispatched, exchanged and unpacked again. What says where
// they lie is kept.
#pragma once

#include <string>

#include "runtime/plan/graph/forward_builder.h"
#include "runtime/plan/nodes/moe/dispatch.h"

namespace millrace {

extern const NodeDef kExpertPiecesNode, kAllToAllNode, kAllToAllKeptNode, kReceivedSlotsNode,
    kUnpackNode, kPackNode;

struct ExpertPlaces {
  Routing pieces;    // by which this rank's rows are dispatched and combined
  Routing received;  // of the rows that this rank's experts work on
  // i32 [n,E/n]: rows for each rank, from each rank.
  ValueId sent_counts = {}, received_counts = {};
};

// axes: along which ranks have experts of their own. Where every rank has all experts, both are
// `routing`, and nothing is emitted, here and below.
// capacity: rows of a piece over those of even loads, at least 1; 0: room for all, as is what gives
// no less. Error(kConfig): the ranks along these axes do not divide the experts.
ExpertPlaces PlaceExperts(ForwardBuilder& b, const Routing& routing, AxisSet axes, double capacity,
                          const std::string& label);
// Rows dispatched by places.pieces -> rows in the order of this rank's experts.
Dispatched SendToExperts(ForwardBuilder& b, const Dispatched& sent, const ExpertPlaces& places,
                         const std::string& label);
// Rows in the order of this rank's experts -> rows to be combined by places.pieces.
ValueId SendBack(ForwardBuilder& b, ValueId y, const ExpertPlaces& places,
                 const std::string& label);

}  // namespace millrace
