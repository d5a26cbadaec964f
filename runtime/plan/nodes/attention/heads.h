// Attributes of nodes that read the heads of fused qkv rows [R, (H + 2 Hkv) D]: all query heads,
// then all key heads, then all value heads.
#pragma once

#include <string>

#include "runtime/plan/graph/semantic_graph.h"

namespace millrace {

struct HeadsAttrs {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;  // H, Hkv, D
};

// Error(kInternal) naming the node `label` when so many heads are not `columns` wide.
void CheckHeads(const HeadsAttrs& attrs, int64_t columns, const std::string& label);

// Heads [first, first + heads) of rows, as [B, T, heads, D].
View HeadsOf(View rows, BatchShape shape, const HeadsAttrs& attrs, int64_t first, int64_t heads);

}  // namespace millrace
