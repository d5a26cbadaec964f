// Bodies of the endpoint's requests: what is refused names a status and says why; what is accepted
// is within its limits, and its answers are JSON however their pieces come.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/infer/request.h"
#include "runtime/serve/answer_text.h"
#include "runtime/serve/request_parser.h"
#include "runtime/serve/served_text.h"
#include "runtime/text/unicode/unicode.h"
#include "tests/fuzz/fuzz.h"

using namespace millrace;

namespace {

void CheckError(const ApiError& error) {
  FUZZ_REQUIRE(error.status == 400 && !error.message.empty());
  const nlohmann::json json = TryParseJson(ErrorJson(error));
  FUZZ_REQUIRE(!json.is_discarded() && json["error"]["message"].is_string());
}

void CheckRequest(const CompletionRequest& request, const RequestLimits& limits) {
  const auto prompts = static_cast<int64_t>(request.prompts.size());
  FUZZ_REQUIRE(request.is_chat ? !request.messages.empty() && prompts == 0
                               : prompts > 0 && prompts <= limits.prompts);
  FUZZ_REQUIRE(request.samples >= 1 &&
               request.samples * std::max<int64_t>(prompts, 1) <= limits.samples);
  for (const PromptInput& prompt : request.prompts)
    FUZZ_REQUIRE(std::visit([](const auto& p) { return !p.empty(); }, prompt));
  for (const std::string& stop : request.stop) FUZZ_REQUIRE(!stop.empty());
  FUZZ_REQUIRE(request.sampling.top >= 0 && request.sampling.top <= limits.top);
  FUZZ_REQUIRE(!request.include_usage || request.stream);
  // What no model can do with it is refused, not run into.
  TokenModelLimits model;
  model.slots = model.pages = 1;
  model.page_tokens = model.max_length = model.max_chunk = 64;
  model.vocab = 256;
  model.top = 64;
  GenerationRequest generation;
  generation.prompt = {1};
  generation.max_tokens = request.max_tokens.value_or(1);
  generation.samples = request.samples;
  generation.sampling = request.sampling;
  const auto refusal = RefusalOf(generation, model);
  FUZZ_REQUIRE(refusal ? !refusal->message.empty() : generation.max_tokens <= 63);
}

// The texts of a request as an answer with its stop strings: in one piece, and byte by byte.
void CheckAnswer(const CompletionRequest& request, std::string_view bytes) {
  AnswerText whole(request.stop), parts(request.stop);
  std::string at_once = whole.Add({}, bytes).text, one_by_one;
  for (size_t i = 0; i < bytes.size() && !parts.stopped(); ++i) {
    const AnswerPiece piece = parts.Add({}, bytes.substr(i, 1));
    FUZZ_REQUIRE(FindInvalidUtf8(piece.text) < 0);
    one_by_one += piece.text;
  }
  at_once += whole.End().text;
  one_by_one += parts.End().text;
  FUZZ_REQUIRE(at_once == one_by_one && FindInvalidUtf8(at_once) < 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input{reinterpret_cast<const char*>(data), size};
  const fuzz::MemoryLimit limit(size);
  const RequestLimits limits;
  for (auto parsed : {ParseCompletion(input, limits), ParseChat(input, limits)}) {
    if (const auto* error = std::get_if<ApiError>(&parsed)) {
      CheckError(*error);
      continue;
    }
    const auto& request = std::get<CompletionRequest>(parsed);
    CheckRequest(request, limits);
    CheckAnswer(request, input);
  }
  const auto tokenize = ParseTokenize(input);
  if (const auto* error = std::get_if<ApiError>(&tokenize)) CheckError(*error);
  const auto detokenize = ParseDetokenize(input);
  if (const auto* error = std::get_if<ApiError>(&detokenize)) {
    CheckError(*error);
  } else {
    const ServedText text(TextKind::kBytes, nullptr, std::nullopt);
    const auto& ids = std::get<DetokenizeRequest>(detokenize).tokens;
    FUZZ_REQUIRE(FindInvalidUtf8(text.Decode(ids)) < 0);
    for (const int32_t id : ids) FUZZ_REQUIRE(!text.Name(id).empty());
  }
  return 0;
}
