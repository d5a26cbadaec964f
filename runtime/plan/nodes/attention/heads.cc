#include "runtime/plan/nodes/attention/heads.h"

#include "runtime/base/error.h"

namespace millrace {

void CheckHeads(const HeadsAttrs& attrs, int64_t columns, const std::string& label) {
  const auto [heads, kv_heads, head_dim] = attrs;
  MR_CHECK(heads > 0 && kv_heads > 0 && heads % kv_heads == 0,
           "node {}: {} heads over {} key/value heads", label, heads, kv_heads);
  MR_CHECK_EQ(columns, (heads + 2 * kv_heads) * head_dim,
              "node {}: columns of qkv against (heads + 2 kv_heads) head_dim", label);
}

View HeadsOf(View rows, BatchShape shape, const HeadsAttrs& attrs, int64_t first, int64_t heads) {
  const int64_t row = rows.layout.dims[1];
  rows.offset += first * attrs.head_dim;
  rows.layout.rank = 4;
  rows.layout.dims = {shape.batch, shape.seq, heads, attrs.head_dim};
  rows.layout.strides = {shape.seq * row, row, attrs.head_dim, 1};
  return rows;
}

}  // namespace millrace
