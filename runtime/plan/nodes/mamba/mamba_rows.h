// Attributes of the nodes of a Mamba-2 mixer (sizes are those of one rank), and what lies where in
// its fused rows z|x|B|C|dt [R, 2 H P + 2 G N + H] and x|B|C [R, H P + 2 G N].
#pragma once

#include <string>

#include "runtime/plan/graph/semantic_graph.h"

namespace millrace {

struct MambaAttrs {
  int64_t heads = 0, head_dim = 0, groups = 0, state = 0;  // H, P, G, N
  int64_t chunk = 128;
  float dt_min = 0, dt_max = 0;
  float eps = 1e-5f;

  int64_t inner() const { return heads * head_dim; }
  int64_t conv_columns() const { return inner() + 2 * groups * state; }
  int64_t columns() const { return inner() + conv_columns() + heads; }  // of z|x|B|C|dt
};

inline constexpr int kMambaParts = 5;  // z, x, B, C, dt
inline constexpr int kConvParts = 3;   // x, B, C

// Error(kInternal) naming the node `label` when heads are no multiple of groups.
void CheckMamba(const MambaAttrs& attrs, const std::string& label);

// Columns [first, first + count) of rows [R, C], as [R, count] and as [B, T, count].
View ColumnsOf(View rows, int64_t first, int64_t count);
View SequenceColumnsOf(View rows, BatchShape shape, int64_t first, int64_t count);
// Columns [first, first + heads * width) of rows, as [B, T, heads, width].
View SequenceHeadsOf(View rows, BatchShape shape, int64_t first, int64_t heads, int64_t width);

}  // namespace millrace
