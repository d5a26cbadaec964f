// Causal self-attention, with key and value heads that query heads may share. branch.h says how it
// is called.
//   attn.qkv.weight   [(heads + 2 kv_heads) head_dim, d_model]   query, key, value rows
//   attn.q_norm.weight, attn.k_norm.weight  [head_dim]          with qk_norm
//   attn.proj.weight  [d_model, heads * head_dim]
// and their biases.
#pragma once

#include <map>
#include <vector>

#include "models/blocks/branch.h"

namespace millrace {

// The rotations of each head_dim of a model: emitted ahead of its first unit.
using RopeTables = std::map<int64_t, ValueId>;

std::vector<ParamSpec> AttentionParams(const AttentionShape& shape, const BranchContext& context);
ValueId EmitAttention(ForwardBuilder& b, ValueId x, const AttentionShape& shape,
                      const BranchContext& context, const RopeTables& ropes);

}  // namespace millrace
