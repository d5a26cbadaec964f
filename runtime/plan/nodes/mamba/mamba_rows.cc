#include "runtime/plan/nodes/mamba/mamba_rows.h"

#include "runtime/base/error.h"

namespace millrace {

void CheckMamba(const MambaAttrs& a, const std::string& label) {
  MR_CHECK(a.heads > 0 && a.groups > 0 && a.heads % a.groups == 0 && a.head_dim > 0 && a.state > 0,
           "node {}: {} heads of {} over {} groups of {} states", label, a.heads, a.head_dim,
           a.groups, a.state);
}

View ColumnsOf(View rows, int64_t first, int64_t count) {
  rows.offset += first;
  rows.layout.dims[1] = count;
  return rows;
}

View SequenceColumnsOf(View rows, BatchShape shape, int64_t first, int64_t count) {
  const int64_t row = rows.layout.strides[0];
  rows.offset += first;
  rows.layout.rank = 3;
  rows.layout.dims = {shape.batch, shape.seq, count};
  rows.layout.strides = {shape.seq * row, row, 1};
  return rows;
}

View SequenceHeadsOf(View rows, BatchShape shape, int64_t first, int64_t heads, int64_t width) {
  const int64_t row = rows.layout.strides[0];
  rows.offset += first;
  rows.layout.rank = 4;
  rows.layout.dims = {shape.batch, shape.seq, heads, width};
  rows.layout.strides = {shape.seq * row, row, width, 1};
  return rows;
}

}  // namespace millrace
