#include "runtime/serve/completion_reply.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/json.h"
#include "runtime/serve/logprobs_json.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> StopsOf(const CompletionRequest& request, const ServedText& text) {
  std::vector<std::string> stops = request.stop;
  const std::string end = request.is_chat ? text.chat_end_text() : "";
  if (!end.empty()) stops.push_back(end);
  return stops;
}

void Append(AnswerPiece& to, AnswerPiece piece) {
  to.text += piece.text;
  std::move(piece.tokens.begin(), piece.tokens.end(), std::back_inserter(to.tokens));
}

}  // namespace

// One sample of one prompt.
struct CompletionReply::Choice {
  Choice(size_t number, std::vector<std::string> stops, int64_t offset)
      : index(number), answer(std::move(stops), offset) {}

  size_t index;
  AnswerText answer;
  AnswerPiece shown;   // all of it; of a stream nothing
  std::string finish;  // "": it goes on
  bool has_prompt = false;
};

CompletionReply::CompletionReply(CompletionRequest request,
                                 std::vector<std::vector<int32_t>> prompts,
                                 CompletionIdentity identity, const ServedText& text,
                                 std::shared_ptr<ReplyBuffer> out)
    : request_(std::move(request)),
      prompts_(std::move(prompts)),
      identity_(std::move(identity)),
      text_(text),
      out_(std::move(out)) {
  for (const std::vector<int32_t>& prompt : prompts_) {
    const int64_t offset = request_.echo ? CharactersIn(text_.Decode(prompt)) : 0;
    for (int64_t sample = 0; sample < request_.samples; ++sample)
      choices_.emplace_back(choices_.size(), StopsOf(request_, text_), offset);
  }
  prompt_scores_.resize(prompts_.size());
}

CompletionReply::~CompletionReply() = default;

// With the first token: what goes wrong before it is a status.
void CompletionReply::Begin() {
  begun_ = true;
  out_->Begin({.content_type = "text/event-stream; charset=utf-8",
               .headers = {{"Cache-Control", "no-cache"}},
               .is_stream = true});
  if (!request_.is_chat) return;
  for (const Choice& choice : choices_) {
    Json chunk = Head("chat.completion.chunk");
    chunk["choices"] = Json::array({{{"index", choice.index},
                                     {"delta", {{"role", "assistant"}, {"content", ""}}},
                                     {"logprobs", nullptr},
                                     {"finish_reason", nullptr}}});
    if (request_.include_usage) chunk["usage"] = nullptr;
    Send(chunk);
  }
}

bool CompletionReply::OnEvent(size_t prompt, const GenerationEvent& event) {
  Choice& choice =
      choices_[prompt * static_cast<size_t>(request_.samples) + static_cast<size_t>(event.sample)];
  if (over_ || !choice.finish.empty()) return false;
  weight_version_ = event.weight_version;
  if (request_.stream && !begun_) Begin();
  if (request_.echo && !choice.has_prompt && event.token) AddPrompt(prompt, choice, event);
  if (event.token && request_.max_tokens != 0) {
    ++completion_tokens_;
    if (event.stop_length == 0)
      Show(choice, choice.answer.Add(*event.token, text_.AnswerBytes(event.token->token)));
  }
  if (choice.answer.stopped() || event.finish) End(choice, event);
  if (is_behind_ && !over_)
    OnError({.status = 408,
             .message = fmt::format("{} bytes of the stream have not been read", kMostUnread),
             .code = "too_slow"});
  return !over_ && choice.finish.empty();
}

// The log-probabilities of a prompt come with its first sample, whose token is drawn first.
void CompletionReply::AddPrompt(size_t prompt, Choice& choice, const GenerationEvent& event) {
  choice.has_prompt = true;
  std::vector<SampledToken>& scores = prompt_scores_[prompt];
  if (event.sample == 0) scores = event.prompt;
  const std::vector<int32_t>& ids = prompts_[prompt];
  AnswerText answer({});
  AnswerPiece piece;
  for (size_t i = 0; i < ids.size(); ++i) {
    SampledToken token{.token = ids[i], .logprob = serve::kNoLogprob, .top = {}};
    if (i > 0 && i - 1 < scores.size()) token = scores[i - 1];
    Append(piece, answer.Add(std::move(token), text_.Bytes(ids[i])));
  }
  Append(piece, answer.End());
  if (!request_.logprobs) piece.tokens.clear();
  Show(choice, std::move(piece));
}

void CompletionReply::Show(Choice& choice, AnswerPiece piece) {
  if (!request_.logprobs) piece.tokens.clear();
  if (piece.empty()) return;
  if (request_.stream)
    SendChunk(choice, piece, false);
  else
    Append(choice.shown, std::move(piece));
}

void CompletionReply::End(Choice& choice, const GenerationEvent& event) {
  Show(choice, choice.answer.End());
  const bool stopped =
      choice.answer.stopped() || (event.finish == FinishReason::kStop && request_.max_tokens != 0);
  choice.finish = stopped ? "stop" : "length";
  if (request_.stream) SendChunk(choice, {}, true);
}

Json CompletionReply::Logprobs(const AnswerPiece& piece) const {
  if (!request_.logprobs || (request_.stream && piece.tokens.empty())) return nullptr;
  return request_.is_chat ? serve::ChatLogprobs(piece.tokens, text_)
                          : serve::CompletionLogprobs(piece.tokens, text_);
}

Json CompletionReply::Head(const char* object) const {
  return {{"id", identity_.id},
          {"object", object},
          {"created", identity_.created},
          {"model", identity_.model},
          {"system_fingerprint", fmt::format("step-{}", weight_version_)}};
}

Json CompletionReply::Usage() const {
  int64_t prompt = 0;
  for (const std::vector<int32_t>& ids : prompts_) prompt += std::ssize(ids);
  return {{"prompt_tokens", prompt},
          {"completion_tokens", completion_tokens_},
          {"total_tokens", prompt + completion_tokens_}};
}

void CompletionReply::SendChunk(const Choice& choice, const AnswerPiece& piece, bool last) {
  Json json = {{"index", choice.index}};
  if (!request_.is_chat)
    json["text"] = piece.text;
  else if (last)
    json["delta"] = Json::object();
  else
    json["delta"] = {{"content", piece.text}};
  json["logprobs"] = Logprobs(piece);
  json["finish_reason"] = last ? Json(choice.finish) : Json(nullptr);
  Json chunk = Head(request_.is_chat ? "chat.completion.chunk" : "text_completion");
  chunk["choices"] = Json::array({std::move(json)});
  if (request_.include_usage) chunk["usage"] = nullptr;
  Send(chunk);
}

void CompletionReply::Send(const Json& json) {
  const size_t unread = out_->Append("data: " + DumpJson(json, {.replace = true}) + "\n\n");
  is_behind_ |= unread > kMostUnread;
}

Json CompletionReply::ChoiceJson(const Choice& choice) const {
  Json json = {{"index", choice.index}};
  if (request_.is_chat)
    json["message"] = {{"role", "assistant"}, {"content", choice.shown.text}, {"refusal", nullptr}};
  else
    json["text"] = choice.shown.text;
  json["logprobs"] = Logprobs(choice.shown);
  json["finish_reason"] = choice.finish;
  return json;
}

void CompletionReply::OnEnd() {
  if (over_) return;
  Json json =
      Head(request_.is_chat ? (request_.stream ? "chat.completion.chunk" : "chat.completion")
                            : "text_completion");
  json["choices"] = Json::array();
  if (!request_.stream)
    for (const Choice& choice : choices_) json["choices"].push_back(ChoiceJson(choice));
  json["usage"] = Usage();
  if (!request_.stream) return out_->Whole({}, DumpJson(json, {.replace = true}));
  if (request_.include_usage) Send(json);
  out_->Append("data: [DONE]\n\n");
  out_->End();
}

// A stream that has begun is a success: its clients look for an error within it.
void CompletionReply::OnError(const ApiError& error) {
  if (std::exchange(over_, true)) return;
  if (!begun_) return out_->Error(error);
  out_->Append("data: " + ErrorJson(error) + "\n\n");
  out_->End();
}

}  // namespace millrace
