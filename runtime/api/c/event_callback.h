// What comes of requests, to the program's callback: with text where it has asked for some.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "runtime/api/c/millrace.h"
#include "runtime/infer/request.h"
#include "runtime/text/token_stream.h"

namespace millrace {

class EventCallback {
 public:
  // CallError MR_INVALID_ARGUMENT without a callback. `options` is whole (ReadSized); its tokenizer
  // outlives this.
  explicit EventCallback(const mr_stream_options& options);

  // Whether the callback wants no more of the sample. CallError: it has failed, with its status.
  bool Say(size_t request, const GenerationEvent& event);

 private:
  std::string TextOf(size_t request, const GenerationEvent& event);

  const mr_stream_options options_;
  std::map<std::pair<size_t, int64_t>, StreamDecoder> texts_;  // of samples that go on
};

}  // namespace millrace
