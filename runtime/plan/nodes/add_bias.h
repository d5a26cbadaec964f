// A bias that is not part of a product: where the product is a sum over ranks, it is added once,
// when the sum is formed.
//
// kAddBiasNode   in: x, bias [C]   out: y = x + bias
#pragma once

#include <string>

#include "runtime/plan/graph/forward_builder.h"

namespace millrace {

extern const NodeDef kAddBiasNode;

ValueId AddBias(ForwardBuilder& b, ValueId x, const std::string& bias, const std::string& label);

}  // namespace millrace
