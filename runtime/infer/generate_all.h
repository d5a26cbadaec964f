// A list of requests from begin to end, for callers that have them all: files of prompts, rollouts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "runtime/infer/generator.h"

namespace millrace {

// One answer. `tokens` has what ended it; text leaves the last `stop_length` of them out.
struct GeneratedSample {
  std::vector<SampledToken> tokens;
  FinishReason finish = FinishReason::kLength;
  int64_t stop_length = 0;
  uint64_t weight_version = 0;
};

struct GeneratedAnswer {
  std::optional<Refusal> refusal;        // then no samples
  std::vector<GeneratedSample> samples;  // in order
};

// For a list of which nobody waits for a token alone: prompts are cached as soon as there is room
// for them. By one piece of a prompt each step, the first sequences would decode in steps that are
// almost empty, and cost what full ones do.
GeneratorOptions PromptsFirst(const TokenModelLimits& limits);

// Runs all requests through a generator that has no others, as many as its queue takes at a time;
// answers in the order of requests. `on_event` (or none) sees each event as it comes, with the
// index of its request, and may cancel.
std::vector<GeneratedAnswer> GenerateAll(
    Generator& generator, std::span<const GenerationRequest> requests,
    const std::function<void(size_t request, const GenerationEvent&)>& on_event = nullptr);

}  // namespace millrace
