// What a generator is asked for, and what comes of it: tokens only. Text is runtime/text's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/infer/token_model.h"

namespace millrace {

struct GenerationRequest {
  std::vector<int32_t> prompt;  // at least one token
  int64_t max_tokens = 1;       // of each answer, at least one
  Sampling sampling;
  // An answer ends with the first of these tokens, or with the first of these sequences; what ends
  // it is part of it. Sequences are looked for in the answer alone, none is empty.
  std::vector<int32_t> stop_tokens;
  std::vector<std::vector<int32_t>> stop_sequences;
  int64_t samples = 1;  // answers, each with a seed of its own: SeedOfSample
  // Sample s has the seed of sample first_sample + s * sample_step: one's share of a request whose
  // samples are dealt out.
  int64_t first_sample = 0, sample_step = 1;
  // Log-probabilities of the prompt's tokens too, with sampling.top likeliest ones: of sample 0's
  // first token, in GenerationEvent::prompt.
  bool score_prompt = false;
};

// Sample 0 has the request's seed, so that one more sample changes none of those before.
uint64_t SeedOfSample(uint64_t seed, int64_t sample);

enum class RefusalReason { kInvalid, kVocabulary, kTooLong, kQueueFull };

constexpr std::string_view Name(RefusalReason reason) noexcept {
  switch (reason) {
    case RefusalReason::kInvalid:
      return "invalid";
    case RefusalReason::kVocabulary:
      return "vocabulary";
    case RefusalReason::kTooLong:
      return "too_long";
    case RefusalReason::kQueueFull:
      return "queue_full";
  }
  return "?";
}

struct Refusal {
  RefusalReason reason = RefusalReason::kInvalid;
  std::string message;  // for people: the field, its value, what is allowed
};

// What no model with these limits can do for the request; nothing: all is well. Queues are not
// looked at.
std::optional<Refusal> RefusalOf(const GenerationRequest& request, const TokenModelLimits& limits);

// Positions that a sequence of the request caches at most: the last token of an answer is not read.
int64_t MostPositions(const GenerationRequest& request);

enum class FinishReason { kStop, kLength, kCancelled };

constexpr std::string_view Name(FinishReason reason) noexcept {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "?";
}

enum class RequestId : uint64_t {};

// One token of one sample, or its end, or both.
struct GenerationEvent {
  RequestId request{};
  int64_t sample = 0;
  int64_t index = 0;                  // of the token in its answer; the answer's length without one
  std::optional<SampledToken> token;  // none: cancelled
  std::optional<FinishReason> finish;
  int64_t stop_length = 0;      // with kStop: so many of the answer's last tokens are the stop's
  uint64_t weight_version = 0;  // of the weights that drew the token (Generator::SetWeightVersion)
  std::vector<SampledToken> prompt = {};  // all of its tokens but the first (score_prompt)
};

}  // namespace millrace
