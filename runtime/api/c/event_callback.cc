#include "runtime/api/c/event_callback.h"

#include <fmt/core.h>

#include <string>

#include "runtime/api/c/status.h"
#include "runtime/api/c/tokenizer_handle.h"

namespace millrace {
namespace {

int32_t FinishOf(const GenerationEvent& event) {
  if (!event.finish) return MR_FINISH_NOT_YET;
  switch (*event.finish) {
    case FinishReason::kStop:
      return MR_FINISH_STOP;
    case FinishReason::kLength:
      return MR_FINISH_LENGTH;
    case FinishReason::kCancelled:
      return MR_FINISH_CANCELLED;
  }
  return MR_FINISH_CANCELLED;
}

// A callback in C++ may throw: what it throws ends here.
mr_status* Call(const mr_stream_options& options, mr_event* event) noexcept {
  try {
    return options.on_event(options.user, event);
  } catch (...) {
    return mr_status_new(MR_CALLBACK, "it has thrown an exception");
  }
}

}  // namespace

EventCallback::EventCallback(const mr_stream_options& options) : options_(options) {
  if (options.on_event == nullptr)
    throw CallError(MR_INVALID_ARGUMENT, "options.on_event is NULL: nobody would hear of a token");
}

// A stop token is no part of the text; what is left of a cut character is, at the end.
std::string EventCallback::TextOf(size_t request, const GenerationEvent& event) {
  const std::pair key(request, event.sample);
  StreamDecoder& text =
      texts_.try_emplace(key, options_.tokenizer->tokenizer, SpecialTokens::kSkip).first->second;
  std::string shown;
  if (event.token && event.stop_length == 0) shown = text.Push(event.token->token);
  if (event.finish) {
    shown += text.Finish();
    texts_.erase(key);
  }
  return shown;
}

bool EventCallback::Say(size_t request, const GenerationEvent& event) {
  mr_event said{.size = sizeof(mr_event),
                .request = static_cast<int64_t>(request),
                .sample = event.sample,
                .index = event.index,
                .token = event.token ? event.token->token : -1,
                .logprob = event.token ? event.token->logprob : 0,
                .finish = FinishOf(event),
                .cancel = 0,
                .weight_version = event.weight_version,
                .text = nullptr,
                .text_bytes = 0};
  std::string text;
  if (options_.tokenizer != nullptr) {
    text = TextOf(request, event);
    said.text = text.c_str();
    said.text_bytes = static_cast<int64_t>(text.size());
  }
  mr_status* const status = Call(options_, &said);
  if (status == nullptr) return said.cancel != 0;
  const CallError error(mr_status_code(status),
                        fmt::format("on_event: {}", mr_status_message(status)));
  mr_status_free(status);
  throw error;
}

}  // namespace millrace
