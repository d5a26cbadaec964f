// Weights in a memory that other processes map: where each tensor of Hugging Face's lies, what the
// manifest says of it, and what writes it there.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/ops/kernel_table.h"
#include "models/huggingface/tensors.h"
#include "runtime/base/shared_memory.h"
#include "runtime/base/stream.h"
#include "runtime/exec/gathered_blocks.h"

namespace millrace {

class SharedWeights {
 public:
  // `tensors`: HuggingFaceTensors of the model.
  explicit SharedWeights(std::vector<HuggingFaceTensor> tensors);

  int64_t bytes() const { return bytes_; }
  // JSON: README.md has its keys.
  std::string Manifest(const SharedMemory& memory, uint64_t version) const;
  // Writes a block of the parameter's elements into all tensors that it is a part of, by the device
  // that has the memory, in stream order.
  void Write(const std::string& param, const ParamBlock& block, SharedMemory& memory,
             const KernelTable& kernels, Stream& stream) const;

 private:
  std::vector<HuggingFaceTensor> tensors_;
  std::map<std::string, int64_t> at_;  // by name; bytes
  int64_t bytes_ = 0;
};

}  // namespace millrace
