// The weights of a Hugging Face folder: model.safetensors, or the files that
// model.safetensors.index.json lists. Also a single .safetensors file by its own path.
//
// Of the index, only names of files directly in the folder are accepted: a path in it could name
// any file of the machine. Index and files must agree in both directions.
//
// Errors   kData naming folder, file and tensor.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/file_system.h"
#include "runtime/data/safetensors/safetensors.h"

namespace millrace {

class SafetensorsFolder {
 public:
  explicit SafetensorsFolder(const std::string& path);

  const std::string& path() const noexcept { return path_; }
  const std::vector<std::string>& names() const noexcept {
    return names_;
  }  // of all tensors, sorted

  bool Has(const std::string& name) const { return tensors_.count(name) != 0; }
  const TensorInfo& Tensor(const std::string& name) const;  // or an error
  void ReadFloats(const std::string& name, int64_t begin, int64_t n,
                  float* out) const;  // as SafetensorsFile's

 private:
  struct Place {
    const SafetensorsFile* file;
    const TensorInfo* tensor;
  };
  const Place& PlaceOf(const std::string& name) const;
  void AddFile(const std::string& path);

  std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Place> tensors_;
  std::vector<std::string> names_;
};

// Writes model.safetensors.index.json: tensor name -> file name. `total_bytes`
// is the size of all tensors.
void WriteSafetensorsIndex(const std::string& folder,
                           const std::map<std::string, std::string>& file_of_tensor,
                           int64_t total_bytes, FileSystem& files = FileSystem::Posix());

}  // namespace millrace
