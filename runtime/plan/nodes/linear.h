// A product with a weight matrix, and a bias.
//
// kLinearNode            in: x, weight [N,K], bias?   out: y = x weight^T + bias
// kLinearGradInputNode   in: d_y, weight              out: d_x
// kLinearGradWeightNode  in: d_y, x                   grad: weight
// kBiasGradNode          in: d_y                      grad: bias
//
// In FP8 where ForwardBuilder::linears says so: attrs LinearEncoding, none for
// kCompute. Biases and their gradients are as ever.
//
// One op with a product computes the GELU of its result; one with d_x the gradient of the GELU
// that x is.
#pragma once

#include <string>

#include "kernels/ops/model_ops.h"
#include "runtime/plan/graph/forward_builder.h"

namespace millrace {

class Lowering;

extern const NodeDef kLinearNode, kLinearGradInputNode, kLinearGradWeightNode, kBiasGradNode;

// The product `op` of rows, which `node` computes: one for each strip of them that is exchanged
// before or behind it (lower/strips.h).
void PushProducts(Lowering& l, const MatmulOp<View>& op, const Node& node);

// `bias`: "" for none.
ValueId Linear(ForwardBuilder& b, ValueId x, const std::string& weight, const std::string& bias,
               const std::string& label);
// Its result is f32, whatever the dtype of activations: it is not rounded. No bias.
ValueId LinearF32(ForwardBuilder& b, ValueId x, const std::string& weight,
                  const std::string& label);

}  // namespace millrace
