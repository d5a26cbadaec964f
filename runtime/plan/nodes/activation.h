// GELU and SwiGLU.
//
// kActivationNode      in: x [R,F] (swiglu [R,2F])   out: y [R,F]
// kActivationGradNode  in: x, d_y                    out: d_x
//
// Attributes ActivationAttrs.
#pragma once

#include <string>

#include "kernels/ops/model_ops.h"
#include "runtime/plan/graph/forward_builder.h"

namespace millrace {

extern const NodeDef kActivationNode, kActivationGradNode;

ValueId Activation(ForwardBuilder& b, ValueId x, ActivationKind kind, const std::string& label);

// Of this node, or of its gradient?
bool IsGelu(const Node& node);
bool IsGeluGrad(const Node& node);

}  // namespace millrace
