#include "runtime/serve/request_parser.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/serve/body_fields.h"

namespace millrace {
namespace {

using nlohmann::json;
using serve::BodyFields;
using serve::IdList;
using serve::Refuse;
using serve::Refused;

constexpr int64_t kMostStops = 16;
constexpr size_t kMostStopBytes = 1024;  // each token is compared with all of them

// Fields that would change answers; `harmless` says when one does not.
struct Unsupported {
  const char* key;
  bool (*harmless)(const json&);
};

bool IsZero(const json& value) { return value.is_number() && value == 0; }
bool IsEmpty(const json& value) {
  return (value.is_object() || value.is_array() || value.is_string()) &&
         (value.empty() || value == "");
}
bool IsTextFormat(const json& value) {
  return value.is_object() && value.size() == 1 && value.value("type", json()) == "text";
}
bool IsTextOnly(const json& value) { return value == json::array({"text"}); }
bool ChoosesNothing(const json& value) { return value == "none" || value == "auto"; }
bool IsFalse(const json& value) { return value == false; }
bool IsTrue(const json& value) { return value == true; }
bool IsMedium(const json& value) { return value == "medium"; }
bool IsOne(const json& value) { return value.is_number() && value == 1; }
bool Never(const json&) { return false; }

constexpr Unsupported kUnsupported[] = {
    {"logit_bias", IsEmpty},
    {"presence_penalty", IsZero},
    {"frequency_penalty", IsZero},
    {"suffix", IsEmpty},
    {"tools", IsEmpty},
    {"tool_choice", ChoosesNothing},
    {"functions", IsEmpty},
    {"function_call", ChoosesNothing},
    {"response_format", IsTextFormat},
    {"modalities", IsTextOnly},
    {"audio", Never},
    {"prediction", Never},
    {"web_search_options", Never},
    {"reasoning_effort", Never},
    {"verbosity", IsMedium},
    // Of other servers, whose clients send them here too.
    {"repetition_penalty", IsOne},
    {"length_penalty", IsOne},
    {"use_beam_search", IsFalse},
    {"min_tokens", IsZero},
    {"ignore_eos", IsFalse},
    {"stop_token_ids", IsEmpty},
    {"include_stop_str_in_output", IsFalse},
    {"bad_words", IsEmpty},
    {"allowed_token_ids", IsEmpty},
    {"truncate_prompt_tokens", Never},
    {"prompt_logprobs", Never},
    {"add_generation_prompt", IsTrue},
    {"continue_final_message", IsFalse},
    {"chat_template", Never},
    {"chat_template_kwargs", IsEmpty},
    {"documents", IsEmpty},
    {"mm_processor_kwargs", IsEmpty},
    {"prompt_embeds", Never},
    {"skip_special_tokens", IsTrue},
    {"return_tokens_as_token_ids", IsFalse},
    {"return_token_ids", IsFalse},
    {"logits_processors", IsEmpty},
    {"vllm_xargs", IsEmpty},
    {"kv_transfer_params", IsEmpty},
    {"structural_tag", Never},
    {"structured_outputs", IsEmpty},
    {"guided_json", Never},
    {"guided_regex", Never},
    {"guided_choice", Never},
    {"guided_grammar", Never},
};

void RefuseUnsupported(const BodyFields& body) {
  for (const Unsupported& field : kUnsupported) {
    const json* const value = body.Find(field.key);
    if (value != nullptr && !field.harmless(*value))
      Refuse(field.key, fmt::format("{} is not supported; leave it out", field.key));
  }
}

std::vector<std::string> StopsOf(const BodyFields& body) {
  const json* const value = body.Find("stop");
  std::vector<std::string> stops;
  if (value == nullptr) return stops;
  const auto add = [&](const json& stop) {
    if (!stop.is_string() || stop == "" ||
        stop.get_ref<const std::string&>().size() > kMostStopBytes)
      Refuse("stop", fmt::format("stop must be a text of 1 to {} bytes, or up to {} such texts",
                                 kMostStopBytes, kMostStops));
    stops.push_back(stop.get<std::string>());
  };
  if (!value->is_array()) {
    add(*value);
    return stops;
  }
  if (std::ssize(*value) > kMostStops)
    Refuse("stop", fmt::format("stop has {} texts; allowed are {}", value->size(), kMostStops));
  for (const json& stop : *value) add(stop);
  return stops;
}

void ReadStreaming(const BodyFields& body, CompletionRequest& request) {
  request.stream = body.Flag("stream", false);
  const json* const options = body.Find("stream_options");
  if (options == nullptr) return;
  if (!request.stream) Refuse("stream_options", "stream_options is for stream=true alone");
  if (!options->is_object()) Refuse("stream_options", "stream_options must be an object");
  const auto usage = options->find("include_usage");
  if (usage == options->end() || usage->is_null()) return;
  if (!usage->is_boolean())
    Refuse("stream_options.include_usage", "stream_options.include_usage must be true or false");
  request.include_usage = usage->get<bool>();
}

void ReadSampling(const BodyFields& body, CompletionRequest& request) {
  Sampling& sampling = request.sampling;
  sampling.temperature = body.Number("temperature", 1, 0, 2);
  sampling.top_p = body.Number("top_p", 1, 0, 1);
  if (sampling.top_p <= 0) Refuse("top_p", "top_p must be above 0, up to 1");
  sampling.min_p = body.Number("min_p", 0, 0, 1);
  // Who wants all tokens says 0, or -1.
  const int64_t top_k = body.Integer("top_k", -1, std::numeric_limits<int32_t>::max()).value_or(0);
  sampling.top_k = static_cast<int32_t>(std::max<int64_t>(top_k, 0));
  const auto seed = body.Integer("seed", std::numeric_limits<int64_t>::min(),
                                 std::numeric_limits<int64_t>::max());
  request.has_seed = seed.has_value();
  sampling.seed = static_cast<uint64_t>(seed.value_or(0));
}

// vLLM's switch: a text gets the tokens of the tokenizer's template around it, a conversation those
// of its own template.
void RequireSpecialTokens(const BodyFields& body, bool added) {
  if (body.Flag("add_special_tokens", added) != added)
    Refuse("add_special_tokens", fmt::format("add_special_tokens must be {} here", added));
}

// What both kinds share.
CompletionRequest ReadShared(const BodyFields& body, const RequestLimits& limits) {
  constexpr int64_t kMostTokens = int64_t{1} << 31;
  RefuseUnsupported(body);
  CompletionRequest request;
  request.model = body.Text("model");
  request.max_tokens = body.Integer("max_tokens", 0, kMostTokens);
  request.samples = body.Integer("n", 1, limits.samples).value_or(1);
  const auto best_of = body.Integer("best_of", 1, limits.samples);
  if (best_of && *best_of != request.samples)
    Refuse("best_of", "best_of is not supported; leave it out");
  ReadSampling(body, request);
  request.stop = StopsOf(body);
  ReadStreaming(body, request);
  body.Text("user");
  return request;
}

PromptInput PromptOf(const json& value) {
  if (value.is_string() && value != "") return value.get<std::string>();
  auto ids = IdList(value);
  if (!ids || ids->empty())
    Refuse("prompt",
           "prompt must be a text, a list of ids, or a list of texts or of lists of ids, none of "
           "them empty");
  return *std::move(ids);
}

std::vector<PromptInput> PromptsOf(const json& value, const RequestLimits& limits) {
  const bool several =
      value.is_array() && !value.empty() && (value.front().is_string() || value.front().is_array());
  std::vector<PromptInput> prompts;
  if (!several) {
    prompts.push_back(PromptOf(value));
    return prompts;
  }
  if (std::ssize(value) > limits.prompts)
    Refuse("prompt",
           fmt::format("there are {} prompts; allowed are {}", value.size(), limits.prompts));
  for (const json& each : value) prompts.push_back(PromptOf(each));
  return prompts;
}

CompletionRequest ReadCompletion(std::string_view text, const RequestLimits& limits) {
  const BodyFields body(text);
  CompletionRequest request = ReadShared(body, limits);
  RequireSpecialTokens(body, true);
  request.prompts = PromptsOf(body.Require("prompt", "a text, or a list of ids"), limits);
  const int64_t all = request.samples * std::ssize(request.prompts);
  if (all > limits.samples)
    Refuse("n", fmt::format("{} prompts with n = {} are {} answers; allowed are {}",
                            request.prompts.size(), request.samples, all, limits.samples));
  request.echo = body.Flag("echo", false);
  const auto top = body.Integer("logprobs", 0, limits.top);
  request.logprobs = top.has_value();
  request.sampling.top = static_cast<int32_t>(top.value_or(0));
  if (request.max_tokens == 0 && !request.echo)
    Refuse("max_tokens", "max_tokens is 0, which is for echo=true alone");
  return request;
}

// A text, or parts of which each is one.
std::string ContentOf(const json& message, const std::string& param) {
  const auto content = message.find("content");
  if (content != message.end() && content->is_string()) return content->get<std::string>();
  if (content == message.end() || !content->is_array())
    Refuse(param, fmt::format("{} must be a text, or a list of parts of type text", param));
  std::string text;
  for (const json& part : *content) {
    const bool is_text = part.is_object() && part.value("type", json()) == "text" &&
                         part.contains("text") && part["text"].is_string();
    if (!is_text) Refuse(param, fmt::format("{} has a part that is not of type text", param));
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

ChatMessage MessageOf(const json& message, size_t number) {
  const std::string at = fmt::format("messages[{}]", number);
  if (!message.is_object()) Refuse(at, at + " must be an object");
  const json role = message.value("role", json());
  if (role != "system" && role != "developer" && role != "user" && role != "assistant")
    Refuse(at + ".role", at + ".role must be system, developer, user or assistant");
  for (const char* key : {"tool_calls", "function_call", "refusal", "audio"})
    if (message.contains(key) && !message[key].is_null() && !IsEmpty(message[key]))
      Refuse(at + "." + key, fmt::format("{}.{} is not supported; leave it out", at, key));
  return {.role = role == "developer" ? "system" : role.get<std::string>(),
          .content = ContentOf(message, at + ".content")};
}

CompletionRequest ReadChat(std::string_view text, const RequestLimits& limits) {
  const BodyFields body(text);
  CompletionRequest request = ReadShared(body, limits);
  request.is_chat = true;
  RequireSpecialTokens(body, false);
  const json& messages = body.Require("messages", "a list of messages");
  if (!messages.is_array() || messages.empty())
    Refuse("messages", "messages must be a list of messages, not empty");
  for (size_t i = 0; i < messages.size(); ++i)
    request.messages.push_back(MessageOf(messages[i], i));
  if (const auto most = body.Integer("max_completion_tokens", 1, int64_t{1} << 31))
    request.max_tokens = most;
  if (request.max_tokens == 0) Refuse("max_tokens", "max_tokens is 0; allowed is 1 or more");
  if (body.Flag("echo", false)) Refuse("echo", "echo is for /v1/completions alone");
  request.logprobs = body.Flag("logprobs", false);
  const auto top = body.Integer("top_logprobs", 0, limits.top);
  if (top && !request.logprobs) Refuse("top_logprobs", "top_logprobs is for logprobs=true alone");
  request.sampling.top = static_cast<int32_t>(top.value_or(0));
  const json* const store = body.Find("store");
  if (store != nullptr && !IsFalse(*store)) Refuse("store", "store is not supported");
  return request;
}

template <class Read>
auto Answered(Read&& read) -> std::variant<decltype(read()), ApiError> {
  try {
    return read();
  } catch (Refused& refused) {
    return std::move(refused.error);
  }
}

}  // namespace

std::variant<CompletionRequest, ApiError> ParseCompletion(std::string_view body,
                                                          const RequestLimits& limits) {
  return Answered([&] { return ReadCompletion(body, limits); });
}

std::variant<CompletionRequest, ApiError> ParseChat(std::string_view body,
                                                    const RequestLimits& limits) {
  return Answered([&] { return ReadChat(body, limits); });
}

std::variant<TokenizeRequest, ApiError> ParseTokenize(std::string_view text) {
  return Answered([&] {
    const BodyFields body(text);
    const json& prompt = body.Require("prompt", "a text");
    if (!prompt.is_string()) Refuse("prompt", "prompt must be a text");
    return TokenizeRequest{prompt.get<std::string>(), body.Flag("add_special_tokens", true)};
  });
}

std::variant<DetokenizeRequest, ApiError> ParseDetokenize(std::string_view text) {
  return Answered([&] {
    const BodyFields body(text);
    auto ids = IdList(body.Require("tokens", "a list of ids"));
    if (!ids) Refuse("tokens", "tokens must be a list of ids");
    return DetokenizeRequest{*std::move(ids)};
  });
}

}  // namespace millrace
