#include "models/huggingface/tensors.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

// Calls f(stored index - begin, index in the parameter) for stored elements [begin, begin + n).
template <class F>
void ForEachElement(const HuggingFaceTensor& tensor, int64_t begin, int64_t n, F&& f) {
  const int64_t base = tensor.first_row * tensor.columns;
  if (tensor.stored_columns > 0) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t row = (begin + i) / tensor.stored_columns,
                    column = (begin + i) % tensor.stored_columns - tensor.first_column;
      if (column >= 0 && column < tensor.columns) f(i, base + row * tensor.columns + column);
    }
    return;
  }
  if (!tensor.transposed) {
    for (int64_t i = 0; i < n; ++i) f(i, base + begin + i);
    return;
  }
  const int64_t out = tensor.shape[1];
  int64_t row = begin % out, column = begin / out;  // of the parameter
  for (int64_t i = 0; i < n; ++i) {
    f(i, base + row * tensor.columns + column);
    if (++row == out) row = 0, ++column;
  }
}

}  // namespace

void CopyToParam(const HuggingFaceTensor& tensor, int64_t begin, std::span<const float> stored,
                 std::span<float> param) {
  const auto n = static_cast<int64_t>(stored.size());
  MR_CHECK(begin >= 0 && begin + n <= tensor.numel(), "elements [{}, {}) of {}, which has {}",
           begin, begin + n, tensor.name, tensor.numel());
  ForEachElement(tensor, begin, n, [&](int64_t i, int64_t at) {
    param[static_cast<size_t>(at)] = stored[static_cast<size_t>(i)];
  });
}

std::vector<float> TakeFromParam(const HuggingFaceTensor& tensor, std::span<const float> param) {
  std::vector<float> stored(static_cast<size_t>(tensor.numel()));
  ForEachElement(tensor, 0, tensor.numel(), [&](int64_t i, int64_t at) {
    stored[static_cast<size_t>(i)] = param[static_cast<size_t>(at)];
  });
  return stored;
}

}  // namespace millrace
