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
#include <optional>
#include <vector>

#include "kernels/ops/loss_ops.h"
#include "runtime/plan/graph/forward_builder.h"
#include "runtime/plan/layout/model_shape.h"
#include "runtime/plan/layout/model_spec.h"
#include "runtime/plan/layout/param_groups.h"

namespace millrace {

// What the next token's loss is told of each target, beside what it is (LossSpec): names of inputs,
// f32 [B,T] each, are "weights", "old_logprobs", "advantages" and "reference_logprobs".
struct LossOptions {
  bool weights = false;  // also of the losses of model.mtp, which predict the same tokens
  std::optional<PolicyLoss> policy = {};  // a policy gradient; a reference where its kl is not 0
};

// A shape, how its weights begin, and how blocks make up units.
struct ModelOptions : ModelShape {
  ModelOptions() { blocks = EqualBlocks(12, {}, {}); }

  // Ranks along the tensor axis, which split the blocks' matrices: qkv, up and gate by their rows
  // (each fused part evenly), their biases likewise, proj and down by their columns.
  int64_t tensor = 1;
  // Ranks along the expert axis, which have as many experts each; those along tensor, too, where
  // experts_over_tensor says so.
  int64_t expert = 1;
  bool experts_over_tensor = false;
  AxisSet expert_axes() const {
    return experts_over_tensor ? AxisSet{Axis::kExpert, Axis::kTensor} : AxisSet(Axis::kExpert);
  }
  int64_t expert_ranks() const { return expert * (experts_over_tensor ? tensor : 1); }
  // Of their receive buffers: rows over those of even loads; 0: room for all. In steps of training
  // alone, which can be undone (nodes/moe/expert_exchange.h).
  double receive_capacity = 0;

  LossOptions loss;
  // Rows of tokens are documents end to end, as the i32 input "documents" [B,T] says: the first
  // position of each position's (kernels/ops/model_ops.h).
  bool documents = false;
  double init_std = 0.02;
  UpdateRule hidden_update = UpdateRule::kAdamW;  // of matrices between hidden states
  ParamGroups groups;                             // whose parameters have another
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
