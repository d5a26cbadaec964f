// Requests, cancellations and steps in any order, over a model that checks how it is called
// (tests/runtime/infer): each answer is the one that its request has alone.
#include "runtime/infer/generator.h"

#include <map>
#include <utility>
#include <variant>

#include "tests/fuzz/fuzz.h"
#include "tests/runtime/infer/checking_token_model.h"

using namespace millrace;

namespace {

// What a sample has so far, prompt first.
struct Open {
  GenerationRequest request;
  std::vector<int32_t> tokens;
};
using OpenSamples = std::map<std::pair<RequestId, int64_t>, Open>;

GenerationRequest RequestOf(fuzz::ByteSource& bytes, int64_t vocab) {
  GenerationRequest request;
  for (int64_t n = bytes.Below(20); n > 0; --n)
    request.prompt.push_back(static_cast<int32_t>(bytes.Below(vocab + 1)));
  request.max_tokens = bytes.Below(20);
  request.samples = bytes.Below(4);
  request.score_prompt = request.prompt.size() % 2 == 1;
  request.sampling.seed = bytes.Integer(1);
  request.sampling.top_p = bytes.Below(8) == 0 ? static_cast<float>(bytes.Number()) : 1;
  if (bytes.Below(2) == 0) request.stop_tokens = {static_cast<int32_t>(bytes.Below(vocab))};
  return request;
}

void Take(const std::vector<GenerationEvent>& events, const TokenModelLimits& limits,
          OpenSamples& open) {
  for (const GenerationEvent& event : events) {
    const auto at = open.find({event.request, event.sample});
    FUZZ_REQUIRE(at != open.end());
    auto& [request, tokens] = at->second;
    const int64_t answered = std::ssize(tokens) - std::ssize(request.prompt);
    FUZZ_REQUIRE(event.index == answered);
    const bool scored = request.score_prompt && event.token && event.sample == 0 && answered == 0;
    FUZZ_REQUIRE(event.prompt.size() == (scored ? request.prompt.size() - 1 : 0));
    if (event.token) {
      Sampling sampling = request.sampling;
      sampling.seed = SeedOfSample(sampling.seed, event.sample);
      const int32_t expected =
          test::CheckingTokenModel::Draw(tokens, sampling, answered, limits.vocab).token;
      FUZZ_REQUIRE(event.token->token == expected);
      tokens.push_back(expected);
      const bool stop = !request.stop_tokens.empty() && expected == request.stop_tokens[0];
      FUZZ_REQUIRE(event.finish.has_value() == (stop || answered + 1 == request.max_tokens));
    } else {
      FUZZ_REQUIRE(event.finish == FinishReason::kCancelled);
    }
    if (event.finish) open.erase(at);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::ByteSource bytes({reinterpret_cast<const char*>(data), size});
  TokenModelLimits limits;
  limits.slots = 1 + bytes.Below(4);
  limits.page_tokens = 1 + bytes.Below(5);
  limits.shares_prefixes = limits.slots % 3 > 0;
  limits.pages = 1 + bytes.Below(24);
  limits.max_length = 1 + bytes.Below(40);
  limits.max_chunk = 1 + bytes.Below(9);
  limits.max_scored = 1 + limits.max_chunk / 2;
  limits.max_together = limits.pages % 4 * 5;
  limits.vocab = 2 + bytes.Below(6);
  limits.steps_ahead = limits.vocab % 2 > 0;
  test::CheckingTokenModel model(limits);
  Generator generator(model, {.max_waiting = 5, .prefill_tokens = bytes.Below(20)});
  OpenSamples open;
  while (!bytes.empty() || !generator.idle()) {
    const int64_t what = bytes.empty() ? 0 : bytes.Below(4);
    if (what == 1) {
      const GenerationRequest request = RequestOf(bytes, limits.vocab);
      const auto submitted = generator.Submit(request);
      if (const auto* id = std::get_if<RequestId>(&submitted))
        for (int64_t s = 0; s < request.samples; ++s) open[{*id, s}] = {request, request.prompt};
      else
        FUZZ_REQUIRE(!std::get<Refusal>(submitted).message.empty());
    } else if (what == 2 && !open.empty()) {
      generator.Cancel(open.begin()->first.first);
    } else {
      Take(generator.Step(), limits, open);
    }
    const Generator::Load load = generator.load();
    FUZZ_REQUIRE(load.running <= limits.slots && load.waiting <= 5 && load.free_pages >= 0);
  }
  FUZZ_REQUIRE(open.empty() && generator.load().free_pages == limits.pages);
  return 0;
}
