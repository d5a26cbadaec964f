// Writes one safetensors file without holding it in memory: the tensors are declared first,
// then their data arrives in pieces, each tensor's from front to back, the tensors
// interleaved as the caller likes.
//
// The file appears under its name in Finish, complete and durable, or not at all: until then it is
// `<path>.tmp`. Hugging Face's transformers wants the metadata {"format": "pt"}.
//
// Errors   kInvalidArgument for a wrong declaration (PlanSafetensors) or dtype, kInternal for too
//          much or too little data, kIo from the machine.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/file_system.h"
#include "runtime/data/safetensors/safetensors.h"

namespace millrace {

class SafetensorsWriter {
 public:
  SafetensorsWriter(std::string path, const std::vector<TensorSpec>& specs,
                    const std::map<std::string, std::string>& metadata,
                    FileSystem& files = FileSystem::Posix());
  ~SafetensorsWriter();  // without Finish: removes the temporary file

  // The next bytes of tensor specs[index], as they shall lie in the file
  // (little endian, row-major).
  void Write(int64_t index, const void* data, int64_t bytes);

  // The next n elements of tensor specs[index], converted from float: F32 and F64
  // exactly, BF16 to nearest even.
  void WriteFloats(int64_t index, const float* values, int64_t n);

  // Every tensor must be complete. Durable on return.
  void Finish();

 private:
  FileSystem& files_;
  std::string path_;
  SafetensorsLayout layout_;
  std::vector<int64_t> written_;  // bytes, per tensor
  std::unique_ptr<OutputFile> file_;
};

}  // namespace millrace
