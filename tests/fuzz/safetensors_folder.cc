// model.safetensors.index.json of a folder that has a.safetensors (tensors "a" and "shared") and
// b.safetensors ("b"), beside a folder of which nothing may be read.
#include "runtime/data/safetensors/safetensors_folder.h"

#include <filesystem>
#include <optional>
#include <string>

#include "tests/fuzz/fuzz.h"
#include "tests/runtime/data/temp_dir.h"

using namespace millrace;

namespace {

void WriteTensors(const std::string& path, const std::vector<std::string>& names) {
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) specs.push_back({name, "U8", {2}});
  const SafetensorsLayout layout = PlanSafetensors(specs, {});
  WriteBytes(path, layout.header + std::string(static_cast<size_t>(2 * names.size()), 'x'));
}

struct Folders {
  TempDir root;
  std::string model = root / "model";
  Folders() {
    std::filesystem::create_directories(model + "/inner");
    std::filesystem::create_directories(root / "other");
    WriteTensors(model + "/a.safetensors", {"a", "shared"});
    WriteTensors(model + "/b.safetensors", {"b"});
    for (const char* name :
         {"/other/secret.safetensors", "/secret.safetensors", "/model/inner/secret.safetensors"})
      WriteTensors(root.path() + name, {"secret"});
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folders folders;
  WriteBytes(folders.model + "/model.safetensors.index.json",
             {reinterpret_cast<const char*>(data), size});
  const fuzz::MemoryLimit limit(size);
  std::optional<SafetensorsFolder> folder;
  if (!fuzz::Accepts({ErrorCode::kData}, [&] { folder.emplace(folders.model); })) return 0;
  FUZZ_REQUIRE(!folder->Has("secret"));
  // The index must have named what is in its files, all of it and nothing else.
  FUZZ_REQUIRE(folder->Has("a") == folder->Has("shared"));
  FUZZ_REQUIRE(folder->names().size() ==
               (folder->Has("a") ? 2u : 0u) + (folder->Has("b") ? 1u : 0u));
  for (const std::string& name : folder->names()) FUZZ_REQUIRE(folder->Tensor(name).bytes == 2);
  return 0;
}
