// A safetensors file, whole.
#include "runtime/data/safetensors/safetensors.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"

using namespace millrace;

namespace {

// Tensors lie inside the file and cover its data, and every byte and number of them can be read.
void CheckPlaces(const SafetensorsFile& file, int64_t file_bytes) {
  int64_t end = 0;
  for (const TensorInfo& tensor : file.tensors()) {
    FUZZ_REQUIRE(tensor.numel >= 0 &&
                 tensor.bytes == tensor.numel * SafetensorsElementBytes(tensor.spec.dtype));
    FUZZ_REQUIRE(tensor.offset >= 8 && tensor.bytes <= file_bytes - tensor.offset);
    FUZZ_REQUIRE(end == 0 || tensor.offset == end);
    end = tensor.offset + tensor.bytes;
    FUZZ_REQUIRE(file.Find(tensor.spec.name) == &tensor);
    std::vector<char> bytes(static_cast<size_t>(tensor.bytes));
    file.ReadBytes(tensor, 0, tensor.bytes, bytes.data());
    std::vector<float> floats(static_cast<size_t>(tensor.numel));
    fuzz::Accepts({ErrorCode::kData},
                  [&] { file.ReadFloats(tensor, 0, tensor.numel, floats.data()); });
  }
  FUZZ_REQUIRE(end == 0 || end == file_bytes);
}

// What the writer makes of the same tensors is read as the same tensors.
void CheckRoundTrip(const SafetensorsFile& file, fuzz::MemoryFile& copy) {
  std::vector<TensorSpec> specs;
  for (const TensorInfo& tensor : file.tensors()) specs.push_back(tensor.spec);
  const SafetensorsLayout layout = PlanSafetensors(specs, file.metadata());
  std::string bytes = layout.header;
  bytes.resize(static_cast<size_t>(layout.file_bytes), '\0');
  for (const TensorInfo& tensor : layout.tensors) {
    const TensorInfo& from = file.Tensor(tensor.spec.name);
    FUZZ_REQUIRE(from.bytes == tensor.bytes);
    file.ReadBytes(from, 0, from.bytes, bytes.data() + tensor.offset);
  }
  copy.Set(bytes);
  const SafetensorsFile again(copy.path());
  FUZZ_REQUIRE(again.metadata() == file.metadata());
  FUZZ_REQUIRE(again.tensors().size() == file.tensors().size());
  for (const TensorInfo& tensor : file.tensors()) {
    const TensorInfo& other = again.Tensor(tensor.spec.name);
    FUZZ_REQUIRE(other.spec == tensor.spec);
    std::string a(static_cast<size_t>(tensor.bytes), '\1'),
        b(static_cast<size_t>(tensor.bytes), '\2');
    file.ReadBytes(tensor, 0, tensor.bytes, a.data());
    again.ReadBytes(other, 0, other.bytes, b.data());
    FUZZ_REQUIRE(a == b);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::MemoryFile input, copy;
  input.Set({reinterpret_cast<const char*>(data), size});
  const fuzz::MemoryLimit limit(size);
  std::optional<SafetensorsFile> file;
  if (!fuzz::Accepts({ErrorCode::kData}, [&] { file.emplace(input.path()); })) return 0;
  CheckPlaces(*file, static_cast<int64_t>(size));
  CheckRoundTrip(*file, copy);
  return 0;
}
