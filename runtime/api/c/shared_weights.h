// Weights in a memory that other processes map: where each tensor of Hugging Face's lies, what the
// manifest says of it, and what writes it there, from the host or on the device.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops/kernel_table.h"
#include "models/huggingface/tensors.h"
#include "runtime/base/shared_memory.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

class SharedWeights {
 public:
  // `tensors`: HuggingFaceTensors of the model.
  explicit SharedWeights(std::vector<HuggingFaceTensor> tensors);

  int64_t bytes() const { return bytes_; }
  // JSON: README.md has its keys.
  std::string Manifest(const SharedMemory& memory, uint64_t version) const;
  // All that the model's parameter is a part of. values: the whole parameter.
  void Write(const std::string& param, std::span<const float> values, SharedMemory& memory) const;
  // The same from where they lie on the device that has the memory, f32 [numel], in stream order.
  void Place(const std::string& param, const TensorView& values, SharedMemory& memory,
             const KernelTable& kernels, Stream& stream) const;

 private:
  std::vector<HuggingFaceTensor> tensors_;
  std::map<std::string, int64_t> at_;  // by name; bytes
  int64_t bytes_ = 0;
};

}  // namespace millrace
