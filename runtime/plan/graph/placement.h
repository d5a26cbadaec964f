// Where a value's elements are along the axes of the mesh. A graph is equal on all ranks and its
// dims are local, what one rank holds; the placement says of which whole.
//
//   cut      axes cut a dim evenly: the rank at place i of its group over them holds block i
//   partial  the value is the sum, over a rank's group over these axes, of what its members hold
//   else     every rank along the axis holds the same
//
// The rules below give the placement of a result, from those of operands whose ops every rank runs
// on what it holds. Errors  What no rank could compute from what it holds: Error(kInternal) with
// `label` and both placements.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/base/mesh.h"

namespace millrace {

struct ValuePlacement {
  std::vector<AxisSet> cut;  // by dim; of dims beyond its end: none
  AxisSet partial;

  AxisSet Cut(size_t dim) const { return dim < cut.size() ? cut[dim] : AxisSet(); }
  bool whole() const { return *this == ValuePlacement{}; }  // the same on all ranks
  friend bool operator==(const ValuePlacement& a, const ValuePlacement& b);
};

// "rows context, columns tensor" as "[context, tensor] partial shard"; "whole".
std::string ToString(const ValuePlacement& placement);

// No axis is used twice?
bool Valid(const ValuePlacement& placement);

// x [R,K], weight [N,K] -> x weight^T [R,N]. Cut along K, both alike, it is a sum over these axes.
ValuePlacement ProductPlacement(const ValuePlacement& x, const ValuePlacement& weight,
                                const std::string& label);
// a + b: of equal placements, partial ones too.
ValuePlacement SumPlacement(const ValuePlacement& a, const ValuePlacement& b,
                            const std::string& label);
// A function of each element: not of parts of a sum.
ValuePlacement ElementwisePlacement(const ValuePlacement& x, const std::string& label);
// A function of each row [R,C]: rows may be cut, columns not.
ValuePlacement RowwisePlacement(const ValuePlacement& x, const std::string& label);

}  // namespace millrace
