#include "kernels/ops/fp8_ops.h"

#include <fmt/core.h>

#include "kernels/ops/fp8_flat_ops.h"
#include "runtime/base/error.h"

namespace millrace {

int64_t ScaleBlockOf(int64_t n, int64_t scales) {
  if (scales == 1) return n < 1 ? 1 : n;
  if (scales == n) return 1;
  MR_CHECK(HasScaleBlocks(n, scales), "scales along a dim of {}", n);
  return kScaleBlock;
}

std::string ToString(const FlatEncoding& encoding) {
  std::string text =
      fmt::format("{}/{}/{}+{}", Name(encoding.compute), static_cast<int>(encoding.scale_rounding),
                  encoding.shard_numel, encoding.most_rest);
  for (const FlatMatrix& m : encoding.matrices)
    text += fmt::format("[{}:{}x{}/{}x{}@{}]", m.begin, m.rows, m.columns, m.scale_rows,
                        m.scale_columns, m.scales);
  for (const FlatRest& part : encoding.rest)
    text += fmt::format("[{},{})@{}", part.begin, part.end, part.at);
  return text;
}

}  // namespace millrace
