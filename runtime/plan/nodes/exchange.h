// Rows that ranks exchange: values of the forward and, by the gradients of these nodes, of the
// backward. `axes`: of the group that exchanges, of n ranks.
//
// kGatherRowsNode      in: x [R/n,C]      out: y [R,C]: rank r's rows are [r R/n, (r + 1) R/n)
// kScatterSumRowsNode  in: x [R,C]        out: y [R/n,C]: of the sum over the ranks' x, added in
//                                              rank order, this rank's rows
//
// Each is the gradient of the other: what a rank has of d_y says how the loss depends on its own
// copy of y, and every copy is of the same x.
//
// Gathered rows of a block are not kept for the backward but gathered again; sums are kept.
#pragma once

#include <string>

#include "runtime/plan/graph/forward_builder.h"

namespace millrace {

extern const NodeDef kGatherRowsNode, kScatterSumRowsNode;

struct ExchangeAttrs {
  AxisSet axes;
};

// Along axes of one rank they emit nothing and give x.
// x's rows are cut by `axes`, last of all that cut them.
ValueId GatherRows(ForwardBuilder& b, ValueId x, AxisSet axes, const std::string& label);
// x is a sum over `axes` that is not formed. Error(kConfig): rows that their ranks do not divide.
ValueId ScatterSumRows(ForwardBuilder& b, ValueId x, AxisSet axes, const std::string& label);

}  // namespace millrace
