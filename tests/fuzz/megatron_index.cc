// The index of a Megatron dataset. The first three bytes are the size of the .bin.
#include "runtime/data/tokens/megatron_index.h"

#include "tests/fuzz/fuzz.h"

using namespace millrace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::MemoryFile file;
  fuzz::ByteSource choices({reinterpret_cast<const char*>(data), size});
  const auto bin_bytes = static_cast<int64_t>(choices.Integer(3));
  const std::string_view content = choices.Rest();
  file.Set(content);
  const fuzz::MemoryLimit limit(size);
  MegatronIndex index;
  if (!fuzz::Accepts({ErrorCode::kData}, [&] {
        const InputFile opened(file.path(), ErrorCode::kData);
        index = ReadMegatronIndex(opened, "x.bin", bin_bytes);
      }))
    return 0;
  FUZZ_REQUIRE(index.tokens * index.bytes_per_token == bin_bytes);
  FUZZ_REQUIRE(index.sequences >= 1 && index.documents >= 1);
  FUZZ_REQUIRE(static_cast<int64_t>(content.size()) ==
               34 + 12 * index.sequences + 8 * (index.documents + 1));
  fuzz::ByteSource lengths(content.substr(34));
  int64_t tokens = 0;
  for (int64_t i = 0; i < index.sequences; ++i) tokens += static_cast<int64_t>(lengths.Integer(4));
  FUZZ_REQUIRE(tokens == index.tokens);
  return 0;
}
