#include "kernels/cuda/matmul/chain_lines.h"

#include <algorithm>

#include "runtime/base/arithmetic.h"

namespace millrace::cuda {

int LinesOf(std::span<const ChainWeights> weights, int64_t skipped, int64_t bytes, int blocks,
            std::span<ChainLines> to) {
  size_t made = 0;
  for (const ChainWeights& w : weights) {
    const int lines = w.gap_bytes != 0 ? 2 : 1;
    const int64_t of_unit = int64_t{w.line_bytes} * lines, most = CeilDiv(w.units, blocks);
    const int64_t first = std::min(skipped / of_unit, most);
    const int64_t count = std::min(bytes / of_unit, most - first);
    skipped = first < most ? 0 : skipped - most * of_unit;
    if (first == most) continue;
    if (count == 0 || w.scattered) break;
    for (int line = 0; line < lines; ++line) {
      if (made == to.size()) return static_cast<int>(made);
      to[made++] = {.data = w.data + line * w.gap_bytes,
                    .each = w.units / blocks,
                    .more = w.units % blocks,
                    .first = static_cast<int>(first),
                    .count = static_cast<int>(count),
                    .line_bytes = w.line_bytes};
    }
    if (count < most - first) break;
    bytes -= count * of_unit;
  }
  return static_cast<int>(made);
}

}  // namespace millrace::cuda
