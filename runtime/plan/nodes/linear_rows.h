// A product with some rows of a weight that is whole on every rank: each rank takes its own, and
// several may take the same. For key and value heads that are fewer than the ranks: no split can
// give a rank its part of the fused weight, so the weight stays unsplit, and its gradient, zero but
// for the rank's rows, is summed over these ranks like that of any unsplit parameter.
//
// kLinearRowsNode            in: x [R,K], weight [N,K]   out: y [R,n] = x (its n rows)^T
// kLinearRowsGradInputNode   in: d_y, weight             out: d_x
// kLinearRowsGradWeightNode  in: d_y, x                  grad: weight
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/graph/forward_builder.h"

namespace millrace {

extern const NodeDef kLinearRowsNode, kLinearRowsGradInputNode, kLinearRowsGradWeightNode;

// `rows` of a weight, the first at `begin`, a RankInt.
struct RowSlice {
  RankInt begin;
  int64_t rows = 0;
};

// The slices' columns follow each other; they are columns of the rank's own along `axes`.
ValueId LinearRows(ForwardBuilder& b, ValueId x, const std::string& weight,
                   const std::vector<RowSlice>& slices, AxisSet axes, const std::string& label);

}  // namespace millrace
