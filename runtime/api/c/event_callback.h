// What comes of requests, to the program's callback: with text where it has asked for some.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/api/c/event_text.h"
#include "runtime/api/c/millrace.h"
#include "runtime/infer/request.h"

namespace millrace {

class EventCallback {
 public:
  // CallError MR_INVALID_ARGUMENT without a callback, or with a tokenizer that is none. `options`
  // is whole (ReadSized).
  explicit EventCallback(const mr_stream_options& options);

  // Whether the callback wants no more of the sample. CallError: it has failed, with its status.
  bool Say(size_t request, const GenerationEvent& event);

 private:
  const mr_stream_options options_;
  std::optional<EventText> text_;    // none without a tokenizer
  std::vector<int32_t> top_tokens_;  // of the event that is said
  std::vector<float> top_logprobs_;
};

}  // namespace millrace
