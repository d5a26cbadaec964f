// The text of a stream's events, of whichever library the events come: a tokenizer is an object of
// the library that has opened it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "runtime/api/c/millrace.h"
#include "runtime/api/c/tokenizer_handle.h"
#include "runtime/text/tokenizer/token_stream.h"

namespace millrace {

// options.on_event(options.user, event). A callback in C++ may throw: what it throws ends here.
mr_status* CallOnEvent(const mr_stream_options& options, mr_event* event) noexcept;

class EventText {
 public:
  // CallError MR_INVALID_ARGUMENT: it is none, or no more. Freed later, it lives as long as this.
  explicit EventText(const mr_tokenizer* tokenizer);

  // What can be shown of the event's sample by now and was not before.
  std::string Of(const mr_event& event);

 private:
  const std::shared_ptr<const OpenedTokenizer> tokenizer_;
  std::map<std::pair<int64_t, int64_t>, StreamDecoder> texts_;  // of samples that go on
};

// The options with which another library streams, where the caller's have a tokenizer: events come
// here, and go on to the caller with their text.
class TextedStream {
 public:
  // `given` is whole (ReadSized), and has a tokenizer and a callback.
  explicit TextedStream(const mr_stream_options& given);
  const mr_stream_options* options() const { return &options_; }

 private:
  static mr_status* OnEvent(void* self, mr_event* event);

  const mr_stream_options given_;
  mr_stream_options options_;
  EventText text_;
};

}  // namespace millrace
