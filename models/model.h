// A model: what it consists of, and its forward as ops. Families are kinds of stack (stack.cc) of
// branches (blocks/); no run-time state, no backward.
//
// Names of units and parameters are a contract: checkpoints, hashes and the
// Hugging Face tables use them.
// Layout  Weight matrices are [out, in]. Rows of a fused qkv weight: all query heads, then all key
//         heads, then all value heads; of gate_up: all gate rows, then all up rows. Tables over the
//         vocabulary store padded_vocab rows, a multiple of 64.
// Init    normal(init_std); of B branches, projections into the residual stream
//         normal(init_std / sqrt(B));
//         norm weights one, biases zero; of a Mamba-2 mixer as blocks/mamba.cc says. Weight decay
//         applies to matrices, those of experts, too.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/plan/graph/forward_builder.h"
#include "runtime/plan/layout/model_shape.h"
#include "runtime/plan/layout/model_spec.h"

namespace millrace {

// A shape, how its weights begin, and how blocks make up units.
struct ModelOptions : ModelShape {
  ModelOptions() { blocks = EqualBlocks(12, {}, {}); }

  // Ranks along the tensor axis, which split the blocks' matrices: qkv, up and gate by their rows
  // (each fused part evenly), their biases likewise, proj and down by their columns.
  int64_t tensor = 1;

  double init_std = 0.02;
  // Consecutive blocks that share one FSDP unit: "h.0", or "h.0-1". The last unit takes what is
  // left. A list says it for each unit instead; its sum is that of the blocks.
  int64_t blocks_per_unit = 1;
  std::vector<int64_t> blocks_of_units;
};

class Model {
 public:
  virtual ~Model() = default;

  // Units in the order of the forward: "embed", blocks, "head" (final norm; and the
  // output matrix unless tied).
  virtual const ModelSpec& spec() const = 0;
  virtual void EmitForward(ForwardBuilder& builder, HeadMode head) const = 0;
};

// Error(kConfig) naming the model.* key, its value and what is allowed.
std::unique_ptr<Model> MakeModel(const ModelOptions& options);

}  // namespace millrace
