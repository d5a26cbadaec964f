// config.json of a Hugging Face folder. (Millrace reads no tokenizer files; this and the weights
// are what it takes from such a folder.)
#include <string>

#include "models/huggingface/config_json.h"
#include "tests/fuzz/fuzz.h"

using namespace millrace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::MemoryLimit limit(size);
  ModelConfig model;
  const bool accepted = fuzz::Accepts({ErrorCode::kData}, [&] {
    model = ModelFromHuggingFace({reinterpret_cast<const char*>(data), size}, "config.json");
  });
  if (accepted)
    FUZZ_REQUIRE(ModelFromHuggingFace(HuggingFaceConfigText(model), "again.json") == model);
  return 0;
}
