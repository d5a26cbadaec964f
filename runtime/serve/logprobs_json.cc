#include "runtime/serve/logprobs_json.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string>

namespace millrace::serve {
namespace {

using Json = nlohmann::ordered_json;

Json Number(float logprob) { return logprob == kNoLogprob ? Json(nullptr) : Json(logprob); }

// Two ids may have one text.
void AddTop(Json& top, int32_t id, float logprob, const ServedText& text) {
  std::string name = text.Name(id);
  if (top.contains(name)) name = fmt::format("token_id:{}", id);
  top[name] = logprob;
}

Json TopOf(const SampledToken& token, const ServedText& text) {
  if (token.logprob == kNoLogprob) return nullptr;
  Json top = Json::object();
  bool has_token = false;
  for (const auto& [id, logprob] : token.top) {
    AddTop(top, id, logprob, text);
    has_token |= id == token.token;
  }
  if (!has_token) AddTop(top, token.token, token.logprob, text);
  return top;
}

Json ChatToken(int32_t id, float logprob, const ServedText& text) {
  Json bytes = Json::array();
  for (const char c : text.Bytes(id)) bytes.push_back(static_cast<uint8_t>(c));
  return {{"token", text.Name(id)}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
}

}  // namespace

Json CompletionLogprobs(std::span<const ShownToken> tokens, const ServedText& text) {
  Json names = Json::array(), logprobs = Json::array(), tops = Json::array(),
       offsets = Json::array();
  for (const ShownToken& shown : tokens) {
    names.push_back(text.Name(shown.token.token));
    logprobs.push_back(Number(shown.token.logprob));
    tops.push_back(TopOf(shown.token, text));
    offsets.push_back(shown.offset);
  }
  return {{"tokens", std::move(names)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json ChatLogprobs(std::span<const ShownToken> tokens, const ServedText& text) {
  Json content = Json::array();
  for (const ShownToken& shown : tokens) {
    Json entry = ChatToken(shown.token.token, shown.token.logprob, text);
    Json top = Json::array();
    for (const auto& [id, logprob] : shown.token.top) top.push_back(ChatToken(id, logprob, text));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

}  // namespace millrace::serve
