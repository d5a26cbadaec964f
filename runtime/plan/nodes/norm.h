// Layer norm and RMS norm.
//
// kNormNode      in: x, weight, bias?             out: y, mean? (layer), rstd
// kNormGradNode  in: d_y, x, weight, mean?, rstd  out: d_x   grad: weight, bias?
//
// Attributes NormAttrs. One op with a norm forms the residual sum that it reads; one with its
// gradient adds the gradient that bypasses it.
#pragma once

#include <string>

#include "kernels/ops/model_ops.h"
#include "runtime/plan/graph/forward_builder.h"

namespace millrace {

extern const NodeDef kNormNode, kNormGradNode;

// `bias`: "" for none.
ValueId Norm(ForwardBuilder& b, ValueId x, const std::string& weight, const std::string& bias,
             NormKind kind, float eps, const std::string& label);

}  // namespace millrace
