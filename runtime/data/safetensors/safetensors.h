// The safetensors format: reading one file, and the layout that writing needs (safetensors_writer.h
// writes, safetensors_folder.h reads a Hugging Face folder).
//
//   file    u64 n (little endian), n bytes of JSON, data
//   JSON    {"<tensor>": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
//            "__metadata__": {"<key>": "<text>", ...}}
//           Offsets count from the start of the data; spaces may pad the end.
//
// A file from a stranger is checked before anything is allocated or read for it: header at most 100
// MB, each name once, at most 64 dims, numel and bytes without overflow, known dtypes, bytes =
// numel * size, and tensors that cover the data exactly: no hole, no overlap, nothing behind.
//
// Errors   The constructor's code (kData or kCheckpoint) naming file and tensor; kIo when the
//          machine fails.
// Source   https://github.com/huggingface/safetensors, README "Format".
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/error.h"
#include "runtime/data/input_file.h"

namespace millrace {

// Bytes per element of a dtype by its safetensors name ("F32", "BF16", ...); 0 for an unknown name.
int64_t SafetensorsElementBytes(const std::string& dtype);

// Its name for one of ours: kF32 -> "F32".
std::string SafetensorsName(DType dtype);

struct TensorSpec {
  std::string name;
  std::string dtype;           // safetensors' name
  std::vector<int64_t> shape;  // {} is one element
  bool operator==(const TensorSpec&) const = default;
};

struct TensorInfo {
  TensorSpec spec;
  int64_t numel = 0;
  int64_t offset = 0;  // of the first byte, from the start of the file
  int64_t bytes = 0;
};

class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::string path, ErrorCode code = ErrorCode::kData);

  const std::string& path() const noexcept { return file_.path(); }
  const std::vector<TensorInfo>& tensors() const noexcept {
    return tensors_;
  }  // in the order of their offsets
  const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
  const TensorInfo* Find(const std::string& name) const;    // null if absent
  const TensorInfo& Tensor(const std::string& name) const;  // or an error

  // out[i] = element begin + i in row-major order, i in [0, n), as float: exact for F16, BF16 and
  // F32, rounded for F64; another dtype is an error. Only these elements are read, and nothing else
  // is allocated but a small buffer.
  void ReadFloats(const TensorInfo& tensor, int64_t begin, int64_t n, float* out) const;

  // out[0, n) = the tensor's bytes [begin, begin + n).
  void ReadBytes(const TensorInfo& tensor, int64_t begin, int64_t n, void* out) const;

 private:
  void ParseHeader(const std::string& json, int64_t data_start);

  InputFile file_;
  ErrorCode code_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

// What a file with these tensors starts with, and where each tensor lies: wider dtypes
// first, so that every tensor is aligned to its element, otherwise in the given order.
// tensors[i] belongs to specs[i].
struct SafetensorsLayout {
  std::string header;  // the size word, the JSON and its padding to a multiple of 8
  std::vector<TensorInfo> tensors;
  int64_t file_bytes = 0;
};

// Pure. A name given twice or reserved, an unknown dtype, a negative dim or overflow:
// Error(kInvalidArgument).
SafetensorsLayout PlanSafetensors(const std::vector<TensorSpec>& specs,
                                  const std::map<std::string, std::string>& metadata);

}  // namespace millrace
