#include "runtime/infer/request.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/arithmetic.h"
#include "runtime/base/philox.h"

namespace millrace {
namespace {

constexpr uint64_t kSampleSeedStream = 0x73616d706c6573;  // "samples"

std::optional<Refusal> Invalid(std::string message) {
  return Refusal{RefusalReason::kInvalid, std::move(message)};
}

std::optional<Refusal> RefusalOf(const Sampling& s, const TokenModelLimits& limits) {
  if (!(s.temperature >= 0) || !std::isfinite(s.temperature))
    return Invalid(fmt::format("temperature is {}; allowed is 0 or more", s.temperature));
  if (s.top_k < 0) return Invalid(fmt::format("top_k is {}; allowed is 0 (all) or more", s.top_k));
  if (!(s.top_p > 0 && s.top_p <= 1))
    return Invalid(fmt::format("top_p is {}; allowed is above 0, up to 1", s.top_p));
  if (!(s.min_p >= 0 && s.min_p <= 1))
    return Invalid(fmt::format("min_p is {}; allowed is 0 to 1", s.min_p));
  if (s.top < 0 || s.top > limits.top)
    return Invalid(fmt::format(
        "log-probabilities of the {} likeliest tokens are asked for; allowed is 0 to {}", s.top,
        limits.top));
  return std::nullopt;
}

std::optional<Refusal> OutsideVocabulary(std::span<const int32_t> tokens, std::string_view what,
                                         int64_t vocab) {
  for (const int32_t token : tokens)
    if (token < 0 || token >= vocab)
      return Refusal{
          RefusalReason::kVocabulary,
          fmt::format("{} has the token {}, outside the vocabulary of {}", what, token, vocab)};
  return std::nullopt;
}

std::optional<Refusal> TooLong(const GenerationRequest& request, const TokenModelLimits& limits) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (request.max_tokens > limits.max_length || prompt > limits.max_length - request.max_tokens)
    return Refusal{RefusalReason::kTooLong,
                   fmt::format("{} tokens of the prompt and up to {} of the answer are more than "
                               "the {} that a sequence can have",
                               prompt, request.max_tokens, limits.max_length)};
  const int64_t pages = CeilDiv(MostPositions(request), limits.page_tokens);
  if (pages > limits.pages)
    return Refusal{
        RefusalReason::kTooLong,
        fmt::format("{} tokens of the prompt and up to {} of the answer need {} pages of "
                    "{} positions; there are {}",
                    prompt, request.max_tokens, pages, limits.page_tokens, limits.pages)};
  return std::nullopt;
}

}  // namespace

uint64_t SeedOfSample(uint64_t seed, int64_t sample) {
  if (sample == 0) return seed;
  const PhiloxCounter words = PhiloxBlock(seed, kSampleSeedStream, static_cast<uint64_t>(sample));
  return uint64_t{words[1]} << 32 | words[0];
}

int64_t MostPositions(const GenerationRequest& request) {
  return static_cast<int64_t>(request.prompt.size()) + request.max_tokens - 1;
}

std::optional<Refusal> RefusalOf(const GenerationRequest& request, const TokenModelLimits& limits) {
  if (request.prompt.empty()) return Invalid("the prompt is empty; it needs at least one token");
  if (request.max_tokens < 1)
    return Invalid(fmt::format("max_tokens is {}; allowed is 1 or more", request.max_tokens));
  if (request.samples < 1)
    return Invalid(fmt::format("samples is {}; allowed is 1 or more", request.samples));
  if (auto refusal = RefusalOf(request.sampling, limits)) return refusal;
  if (auto refusal = OutsideVocabulary(request.prompt, "the prompt", limits.vocab)) return refusal;
  if (auto refusal = OutsideVocabulary(request.stop_tokens, "stop_tokens", limits.vocab))
    return refusal;
  for (const std::vector<int32_t>& sequence : request.stop_sequences) {
    if (sequence.empty()) return Invalid("a stop sequence is empty");
    if (auto refusal = OutsideVocabulary(sequence, "a stop sequence", limits.vocab)) return refusal;
  }
  return TooLong(request, limits);
}

}  // namespace millrace
