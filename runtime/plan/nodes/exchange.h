// Rows that ranks exchange: values of the forward and, by the gradients of these nodes, of the
// backward. `axes`: of the group that exchanges, of n ranks.
//
// kGatherRowsNode      in: x [R/n,C]      out: y [R,C]: rank r's rows are [r R/n, (r + 1) R/n)
// kScatterSumRowsNode  in: x [R,C]        out: y [R/n,C]: of the sum over the ranks' x, added in
//                                              rank order, this rank's rows
// kSumRowsNode         in: x [R,C]        out: y [R,C]: of that sum all rows, with its bits; in
//                                              graphs with caches, without a gradient
//
// Each of the first two is the gradient of the other: what a rank has of d_y says how the loss
// depends on its own copy of y, and every copy is of the same x.
//
// Over the axis that cuts rows between blocks both go strip by strip (BatchShape::strips), an op
// each, and so do the products around them (linear.h): one begins with the rows that have landed,
// and its sums leave when they are formed. Strips lie one behind the other on every rank, so that
// each is one collective of contiguous rows.
//
// Gathered rows of a block are kept for the backward where bytes are free (schedule/
// kept_exchanges.h), else gathered again; sums are kept.
#pragma once

#include <string>

#include "runtime/plan/graph/forward_builder.h"

namespace millrace {

extern const NodeDef kGatherRowsNode, kScatterSumRowsNode, kSumRowsNode;

struct ExchangeAttrs {
  AxisSet axes;
};

// Along axes of one rank they emit nothing and give x.
// x's rows are cut by `axes`, last of all that cut them.
ValueId GatherRows(ForwardBuilder& b, ValueId x, AxisSet axes, const std::string& label);
// x is a sum over `axes` that is not formed. Error(kConfig): rows that their ranks do not divide.
ValueId ScatterSumRows(ForwardBuilder& b, ValueId x, AxisSet axes, const std::string& label);
// Of such an x each rank gets all rows of the sum.
ValueId SumRows(ForwardBuilder& b, ValueId x, AxisSet axes, const std::string& label);

}  // namespace millrace
