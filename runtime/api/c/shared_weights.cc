#include "runtime/api/c/shared_weights.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/arithmetic.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

constexpr int64_t kAlignment = 256, kSize = sizeof(float);

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

void SharedWeights::Write(const std::string& param, std::span<const float> values,
                          SharedMemory& memory) const {
  for (const HuggingFaceTensor& tensor : tensors_) {
    if (tensor.param != param) continue;
    const std::vector<float> stored = TakeFromParam(tensor, values);
    const int64_t at = at_.at(tensor.name), width = tensor.stored_columns;
    if (width == 0) {
      memory.Write(at, stored.data(), std::ssize(stored) * kSize);
      continue;
    }
    for (int64_t i = tensor.first_column; i < std::ssize(stored); i += width)  // others' are beside
      memory.Write(at + i * kSize, stored.data() + i, tensor.columns * kSize);
  }
}

void SharedWeights::Place(const std::string& param, const TensorView& values, SharedMemory& memory,
                          const KernelTable& kernels, Stream& stream) const {
  for (const HuggingFaceTensor& tensor : tensors_) {
    if (tensor.param != param) continue;
    const int64_t columns = tensor.columns, width = tensor.stored_columns;
    const int64_t rows = tensor.numel() / (width > 0 ? width : columns);
    TensorView from = {values.data + tensor.first_row * columns * kSize,
                       DenseLayout(DType::kF32, {rows, columns})};
    TensorView to = {memory.data() + at_.at(tensor.name) + tensor.first_column * kSize,
                     from.layout};
    if (tensor.transposed)
      to.layout.strides = {1, rows};
    else if (width > 0)
      to.layout.strides = {width, 1};
    else
      to.layout = from.layout = DenseLayout(DType::kF32, {1, rows * columns});
    kernels.copy_rows({{}, from, to}, stream);
  }
}

}  // namespace millrace
