#include "runtime/base/tensor_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace millrace {

std::string ToString(const Layout& layout) {
  const auto joined = [&](const std::array<int64_t, kMaxRank>& values) {
    return fmt::format("{}", fmt::join(values.begin(), values.begin() + layout.rank, ", "));
  };
  if (layout.contiguous()) return fmt::format("{}[{}]", Name(layout.dtype), joined(layout.dims));
  return fmt::format("{}[{} : {}]", Name(layout.dtype), joined(layout.dims),
                     joined(layout.strides));
}

}  // namespace millrace
