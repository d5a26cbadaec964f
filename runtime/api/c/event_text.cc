#include "runtime/api/c/event_text.h"

#include "runtime/api/c/status.h"

namespace millrace {

mr_status* CallOnEvent(const mr_stream_options& options, mr_event* event) noexcept {
  try {
    return options.on_event(options.user, event);
  } catch (...) {
    return mr_status_new(MR_CALLBACK, "it has thrown an exception");
  }
}

EventText::EventText(const mr_tokenizer* tokenizer)
    : tokenizer_(TokenizerHandles::Get().Require(tokenizer, "options.tokenizer")) {}

// A stop token is no part of the text; what is left of a cut character is, at the end.
std::string EventText::Of(const mr_event& event) {
  const std::pair key(event.request, event.sample);
  StreamDecoder& text =
      texts_.try_emplace(key, tokenizer_->tokenizer, SpecialTokens::kSkip).first->second;
  std::string shown;
  if (event.token >= 0 && event.finish != MR_FINISH_STOP) shown = text.Push(event.token);
  if (event.finish != MR_FINISH_NOT_YET) {
    shown += text.Finish();
    texts_.erase(key);
  }
  return shown;
}

TextedStream::TextedStream(const mr_stream_options& given)
    : given_(given), options_(given), text_(given.tokenizer) {
  options_.size = sizeof options_;
  options_.user = this;
  options_.on_event = OnEvent;
  options_.tokenizer = nullptr;
}

mr_status* TextedStream::OnEvent(void* self, mr_event* event) {
  auto& stream = *static_cast<TextedStream*>(self);
  mr_status* said = nullptr;
  mr_status* const failed = Guarded([&] {
    const std::string text = stream.text_.Of(*event);
    event->text = text.c_str();
    event->text_bytes = static_cast<int64_t>(text.size());
    said = CallOnEvent(stream.given_, event);
    event->text = nullptr;
    event->text_bytes = 0;
  });
  return failed != nullptr ? failed : said;
}

}  // namespace millrace
