#include "runtime/api/c/shared_weights.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/arithmetic.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

constexpr int64_t kAlignment = 256, kSize = sizeof(float);

// Elements [row, row + rows) x [column, column + columns) of a parameter.
struct Rectangle {
  int64_t row = 0, column = 0;
  TensorView values;  // f32 [rows, columns], strided in dim 0
};

// A block of a parameter with so many columns: lines of a part of a row, or of each line what is
// left of its first row, whole rows, and what there is of its last.
template <class F>
void ForEachRectangle(const ParamBlock& block, int64_t columns, F&& f) {
  const int64_t lines = block.values.dim(0), n = block.values.dim(1);
  const auto part = [&](int64_t line, int64_t begin, int64_t rows, int64_t width, int64_t stride) {
    const int64_t logical = block.logical + line * block.stride + begin;
    TensorView values{block.values.data + (line * block.values.stride(0) + begin) * kSize,
                      DenseLayout(DType::kF32, {rows, width})};
    values.layout.strides[0] = stride;
    f(Rectangle{logical / columns, logical % columns, values});
  };
  if (block.stride == columns && block.logical % columns + n <= columns)
    return part(0, 0, lines, n, block.values.stride(0));
  for (int64_t line = 0; line < lines; ++line) {
    const int64_t logical = block.logical + line * block.stride;
    const int64_t head = std::min(n, RoundUp(logical, columns) - logical),
                  rows = (n - head) / columns, tail = n - head - rows * columns;
    if (head > 0) part(line, 0, 1, head, head);
    if (rows > 0) part(line, head, rows, columns, columns);
    if (tail > 0) part(line, n - tail, 1, tail, tail);
  }
}

// Where a tensor's elements lie that are a parameter's rows.
class StoredMatrix {
 public:
  StoredMatrix(const HuggingFaceTensor& tensor, std::byte* data) : tensor_(tensor), data_(data) {
    const int64_t width = tensor.stored_columns > 0 ? tensor.stored_columns : tensor.columns;
    rows_ = tensor.numel() / width;
    row_ = tensor.transposed ? 1 : width;
    column_ = tensor.transposed ? rows_ : 1;
  }

  // copy(from, to) of what it has of a rectangle.
  template <class F>
  void Take(const Rectangle& rectangle, F&& copy) const {
    const int64_t first = std::max(rectangle.row, tensor_.first_row),
                  end =
                      std::min(rectangle.row + rectangle.values.dim(0), tensor_.first_row + rows_);
    if (first >= end) return;
    TensorView from = rectangle.values;
    from.data += (first - rectangle.row) * from.stride(0) * kSize;
    from.layout.dims[0] = end - first;
    TensorView to{data_ + ((first - tensor_.first_row) * row_ +
                           (tensor_.first_column + rectangle.column) * column_) *
                              kSize,
                  from.layout};
    to.layout.strides = {row_, column_};
    if (from.layout.contiguous() && to.layout.contiguous())  // one row of any length
      from.layout = to.layout = DenseLayout(DType::kF32, {1, from.numel()});
    copy(from, to);
  }

 private:
  const HuggingFaceTensor& tensor_;
  std::byte* const data_;
  int64_t rows_ = 0, row_ = 0, column_ = 0;  // strides
};

}  // namespace

SharedWeights::SharedWeights(std::vector<HuggingFaceTensor> tensors)
    : tensors_(std::move(tensors)) {
  for (const HuggingFaceTensor& tensor : tensors_)
    if (at_.try_emplace(tensor.name, bytes_).second)  // one that parameters share stands once
      bytes_ = RoundUp(bytes_ + tensor.numel() * kSize, kAlignment);
}

std::string SharedWeights::Manifest(const SharedMemory& memory, uint64_t version) const {
  nlohmann::ordered_json tensors = nlohmann::ordered_json::object();
  for (const HuggingFaceTensor& tensor : tensors_)
    tensors[tensor.name] = {
        {"dtype", "F32"}, {"shape", tensor.shape}, {"offset", at_.at(tensor.name)}};
  nlohmann::ordered_json manifest = {{"millrace_weights", 1}, {"version", version}};
  if (!memory.gpu().empty()) manifest["gpu"] = memory.gpu();
  manifest["bytes"] = memory.bytes();
  manifest["tensors"] = std::move(tensors);
  return DumpJson(manifest);
}

void SharedWeights::Write(const std::string& param, const ParamBlock& block, SharedMemory& memory,
                          const KernelTable& kernels, Stream& stream) const {
  const auto copy = [&](const TensorView& from, const TensorView& to) {
    kernels.copy_rows({{}, from, to}, stream);
  };
  for (const HuggingFaceTensor& tensor : tensors_) {
    if (tensor.param != param) continue;
    const StoredMatrix stored(tensor, memory.data() + at_.at(tensor.name));
    ForEachRectangle(block, tensor.columns,
                     [&](const Rectangle& rectangle) { stored.Take(rectangle, copy); });
  }
}

}  // namespace millrace
