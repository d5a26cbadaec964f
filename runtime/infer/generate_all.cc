#include "runtime/infer/generate_all.h"

#include <map>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {

GeneratorOptions PromptsFirst(const TokenModelLimits& limits) {
  return {.prefill_tokens = limits.slots * limits.max_length};
}

std::vector<GeneratedAnswer> GenerateAll(
    Generator& generator, std::span<const GenerationRequest> requests,
    const std::function<void(size_t request, const GenerationEvent&)>& on_event) {
  MR_CHECK(generator.idle(), "a list of requests for a generator that has others");
  std::vector<GeneratedAnswer> answers(requests.size());
  std::map<RequestId, size_t> index;
  size_t next = 0;
  while (next < requests.size() || !generator.idle()) {
    for (; next < requests.size(); ++next) {
      auto submitted = generator.Submit(requests[next]);
      if (const auto* refusal = std::get_if<Refusal>(&submitted)) {
        if (refusal->reason == RefusalReason::kQueueFull) break;  // there will be room
        answers[next].refusal = *refusal;
        continue;
      }
      index[std::get<RequestId>(submitted)] = next;
      answers[next].samples.resize(static_cast<size_t>(requests[next].samples));
    }
    for (GenerationEvent& event : generator.Step()) {
      const size_t request = index.at(event.request);
      if (on_event) on_event(request, event);
      GeneratedSample& sample = answers[request].samples[static_cast<size_t>(event.sample)];
      if (event.token) sample.tokens.push_back(*std::move(event.token));
      sample.weight_version = event.weight_version;
      if (!event.finish) continue;
      sample.finish = *event.finish;
      sample.stop_length = event.stop_length;
    }
  }
  return answers;
}

}  // namespace millrace
