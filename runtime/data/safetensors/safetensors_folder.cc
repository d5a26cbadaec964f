#include "runtime/data/safetensors/safetensors_folder.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/data/strict_json.h"

namespace millrace {
namespace {

constexpr ErrorCode kData = ErrorCode::kData;
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr int64_t kLargestIndex = 100'000'000;

bool IsPlainFileName(const std::string& name) {
  constexpr std::string_view kExtension = ".safetensors";
  return name.size() > kExtension.size() && name[0] != '.' &&
         name.compare(name.size() - kExtension.size(), std::string::npos, kExtension) == 0 &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

std::string Join(const std::string& folder, const std::string& name) {
  return (std::filesystem::path(folder) / name).string();
}

// tensor name -> file name
std::map<std::string, std::string> ReadIndex(const std::string& path) {
  const JsonOrigin origin{path, kData};
  const nlohmann::json index =
      ParseStrictJson(ReadWholeFile(path, kLargestIndex, kData), 4, origin);
  const nlohmann::json& weight_map = JsonField(index, "weight_map", origin);
  MR_REQUIRE(kData, weight_map.is_object() && !weight_map.empty(),
             "{}: weight_map must be a non-empty object", path);
  std::map<std::string, std::string> files;
  for (const auto& [tensor, value] : weight_map.items()) {
    const std::string file = JsonString(weight_map, tensor, origin);
    MR_REQUIRE(kData, IsPlainFileName(file),
               "{}: tensor \"{}\" is in {}; only the name of a .safetensors file in the same "
               "folder is allowed",
               path, tensor, DumpJson(value));
    files[tensor] = file;
  }
  return files;
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(const std::string& path) : path_(path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    AddFile(path);
  } else if (std::filesystem::exists(Join(path, kSingle), ignored)) {
    AddFile(Join(path, kSingle));
  } else {
    const std::string index_path = Join(path, kIndex);
    MR_REQUIRE(kData, std::filesystem::exists(index_path, ignored),
               "the folder {} has neither {} nor {}", path, kSingle, kIndex);
    const std::map<std::string, std::string> index = ReadIndex(index_path);
    std::set<std::string> names;
    for (const auto& [tensor, file] : index) names.insert(file);
    for (const std::string& name : names) AddFile(Join(path, name));
    for (const auto& [tensor, file] : index) {
      const auto found = tensors_.find(tensor);
      MR_REQUIRE(kData, found != tensors_.end() && found->second.file->path() == Join(path, file),
                 "{} says that \"{}\" is in {}, which has no such tensor", index_path, tensor,
                 file);
    }
    for (const auto& [tensor, place] : tensors_)
      MR_REQUIRE(kData, index.count(tensor) != 0,
                 "{} has the tensor \"{}\", which {} does not list", place.file->path(), tensor,
                 index_path);
  }
  for (const auto& [name, place] : tensors_) names_.push_back(name);
}

void SafetensorsFolder::AddFile(const std::string& path) {
  files_.push_back(std::make_unique<SafetensorsFile>(path, kData));
  const SafetensorsFile& file = *files_.back();
  for (const TensorInfo& tensor : file.tensors()) {
    const auto [place, inserted] = tensors_.try_emplace(tensor.spec.name, Place{&file, &tensor});
    MR_REQUIRE(kData, inserted, "{} and {} both have the tensor \"{}\"", place->second.file->path(),
               path, tensor.spec.name);
  }
}

const SafetensorsFolder::Place& SafetensorsFolder::PlaceOf(const std::string& name) const {
  const auto found = tensors_.find(name);
  MR_REQUIRE(kData, found != tensors_.end(), "{} has no tensor \"{}\"", path_, name);
  return found->second;
}

const TensorInfo& SafetensorsFolder::Tensor(const std::string& name) const {
  return *PlaceOf(name).tensor;
}

void SafetensorsFolder::ReadFloats(const std::string& name, int64_t begin, int64_t n,
                                   float* out) const {
  const Place& place = PlaceOf(name);
  place.file->ReadFloats(*place.tensor, begin, n, out);
}

void WriteSafetensorsIndex(const std::string& folder,
                           const std::map<std::string, std::string>& file_of_tensor,
                           int64_t total_bytes, FileSystem& files) {
  const nlohmann::json index = {{"metadata", {{"total_size", total_bytes}}},
                                {"weight_map", file_of_tensor}};
  WriteFileAtomically(files, Join(folder, kIndex), DumpJson(index, {.indent = 2}) + "\n");
}

}  // namespace millrace
