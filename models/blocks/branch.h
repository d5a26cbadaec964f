// One branch of a block: its parameters, and its forward between the norm ahead of it and the sum
// behind it. Each kind has a file with a pair of functions,
//
//   std::vector<ParamSpec> AttentionParams(const AttentionShape&, const BranchContext&);
//   ValueId EmitAttention(ForwardBuilder&, ValueId x, const AttentionShape&, const BranchContext&);
//
// and a case of each in stack.cc. x: the normalised rows of this rank, [R, d_model] in the compute
// dtype. The result has the same shape and dtype, and is what the residual stream gains.
#pragma once

#include <string>

#include "models/model.h"

namespace millrace {

struct BranchContext {
  const ModelOptions& options;
  bool biases = false;  // linears have biases
  std::string prefix;   // of the block's parameters: "h.3."
  std::string label;    // of its nodes: "h.3/"
};

}  // namespace millrace
