// Tokens to the JSON of /v1/completions and /v1/chat/completions: one object, or server-sent
// events. Source: OpenAI's API as its Python client and lm-eval read it.
//
// Logprobs   Each number is printed with all the digits that make it the same again, the same
//            number the same way: who compares a token's with the greatest finds them equal. Names
//            of tokens (ServedText::Name) differ within one position.
// Stream     data: {...}, an empty line; at the end data: [DONE]. Pieces end to end are the whole.
//            A reader that is kMostUnread bytes behind gets an error event in place of the rest:
//            nobody waits for it, and what it does not read takes memory.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/serve/answer_text.h"
#include "runtime/serve/reply_buffer.h"
#include "runtime/serve/request_parser.h"
#include "runtime/serve/serve_engine.h"
#include "runtime/serve/served_text.h"

namespace millrace {

struct CompletionIdentity {
  std::string id, model;
  int64_t created = 0;  // seconds since 1970
};

class CompletionReply final : public AnswerSink {
 public:
  static constexpr size_t kMostUnread = 4 << 20;

  // `prompts`: the ids of each. `text` outlives it.
  CompletionReply(CompletionRequest request, std::vector<std::vector<int32_t>> prompts,
                  CompletionIdentity identity, const ServedText& text,
                  std::shared_ptr<ReplyBuffer> out);
  ~CompletionReply() override;

  bool OnEvent(size_t prompt, const GenerationEvent& event) override;
  void OnEnd() override;
  void OnError(const ApiError& error) override;

 private:
  struct Choice;

  void Begin();
  void AddPrompt(size_t prompt, Choice& choice, const GenerationEvent& event);
  void Show(Choice& choice, AnswerPiece piece);
  void End(Choice& choice, const GenerationEvent& event);
  void SendChunk(const Choice& choice, const AnswerPiece& piece, bool last);
  void Send(const nlohmann::ordered_json& json);
  nlohmann::ordered_json Head(const char* object) const;
  nlohmann::ordered_json Usage() const;
  nlohmann::ordered_json ChoiceJson(const Choice& choice) const;
  nlohmann::ordered_json Logprobs(const AnswerPiece& piece) const;

  const CompletionRequest request_;
  const std::vector<std::vector<int32_t>> prompts_;
  const CompletionIdentity identity_;
  const ServedText& text_;
  const std::shared_ptr<ReplyBuffer> out_;
  std::vector<Choice> choices_;  // the samples of the first prompt, then those of the next
  std::vector<std::vector<SampledToken>> prompt_scores_;  // by prompt
  int64_t completion_tokens_ = 0;
  uint64_t weight_version_ = 0;
  bool begun_ = false;  // a stream
  bool is_behind_ = false, over_ = false;
};

}  // namespace millrace
