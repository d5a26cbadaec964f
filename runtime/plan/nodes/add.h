// The sum of two values, and of the gradients that a value's readers contribute.
//
// kAddNode  in: a, b [R,C]   out: a + b
#pragma once

#include <string>

#include "runtime/plan/graph/forward_builder.h"
#include "runtime/plan/graph/gradients.h"

namespace millrace {

extern const NodeDef kAddNode;

ValueId Add(ForwardBuilder& b, ValueId x, ValueId y, const std::string& label);

// For rules: adds `contribution` to the gradient of `of`, if that is wanted. `forward`: the node
// whose rule it is.
void Contribute(Differentiator& d, ValueId of, ValueId contribution, const Node& forward);

}  // namespace millrace
