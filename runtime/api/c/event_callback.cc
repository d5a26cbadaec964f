#include "runtime/api/c/event_callback.h"

#include <fmt/core.h>

#include <iterator>
#include <string>

#include "runtime/api/c/status.h"

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

}  // namespace

EventCallback::EventCallback(const mr_stream_options& options) : options_(options) {
  if (options.on_event == nullptr)
    throw CallError(MR_INVALID_ARGUMENT, "options.on_event is NULL: nobody would hear of a token");
  if (options.tokenizer != nullptr) text_.emplace(options.tokenizer);
}

bool EventCallback::Say(size_t request, const GenerationEvent& event) {
  top_tokens_.clear();
  top_logprobs_.clear();
  if (event.token)
    for (const auto& [token, logprob] : event.token->top) {
      top_tokens_.push_back(token);
      top_logprobs_.push_back(logprob);
    }
  const bool has_top = !top_tokens_.empty();
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
                .text_bytes = 0,
                .top = std::ssize(top_tokens_),
                .top_tokens = has_top ? top_tokens_.data() : nullptr,
                .top_logprobs = has_top ? top_logprobs_.data() : nullptr};
  std::string text;
  if (text_) {
    text = text_->Of(said);
    said.text = text.c_str();
    said.text_bytes = static_cast<int64_t>(text.size());
  }
  mr_status* const status = CallOnEvent(options_, &said);
  if (status == nullptr) return said.cancel != 0;
  const CallError error(mr_status_code(status),
                        fmt::format("on_event: {}", mr_status_message(status)));
  mr_status_free(status);
  throw error;
}

}  // namespace millrace
