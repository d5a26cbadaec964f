// A file of prompts: what is accepted can be judged by any model's limits, and its text has its
// tokens.
#include "tools/cli/use/prompts.h"

#include <string_view>

#include "tests/fuzz/fuzz.h"

using namespace millrace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::MemoryFile file;
  const fuzz::MemoryLimit limit(size);
  file.Set({reinterpret_cast<const char*>(data), size});
  GenerateArguments arguments;
  arguments.file = file.path();
  const ByteCodec codec;
  std::vector<Prompt> prompts;
  if (!fuzz::Accepts({ErrorCode::kData}, [&] { prompts = PromptsOf(arguments, codec); })) return 0;
  FUZZ_REQUIRE(!prompts.empty());
  TokenModelLimits limits;
  limits.slots = limits.pages = 1;
  limits.page_tokens = limits.max_length = limits.max_chunk = 64;
  limits.vocab = 256;
  limits.top = 5;
  for (const Prompt& prompt : prompts) {
    const GenerationRequest& request = prompt.request;
    if (!prompt.text.empty()) FUZZ_REQUIRE(codec.Encode(prompt.text) == request.prompt);
    for (const std::string& stop : prompt.stop) FUZZ_REQUIRE(!stop.empty());
    const auto refusal = RefusalOf(request, limits);
    if (refusal) {
      FUZZ_REQUIRE(!refusal->message.empty());
      continue;
    }
    FUZZ_REQUIRE(!request.prompt.empty() && request.max_tokens >= 1 && request.samples >= 1);
    FUZZ_REQUIRE(std::ssize(request.prompt) + request.max_tokens <= limits.max_length);
    FUZZ_REQUIRE(request.sampling.temperature >= 0 && request.sampling.top <= limits.top);
  }
  return 0;
}
