#include "runtime/serve/serve_api.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/serve/completion_reply.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

struct Route {
  std::string_view path, method;
  bool is_open = false;  // needs no token
};
constexpr std::array<Route, 8> kRoutes = {{{"/v1/completions", "POST"},
                                           {"/v1/chat/completions", "POST"},
                                           {"/v1/models", "GET"},
                                           {"/tokenize", "POST"},
                                           {"/detokenize", "POST"},
                                           {"/tokenizer_info", "GET"},
                                           {"/health", "GET", true},
                                           {"/metrics", "GET"}}};
constexpr std::string_view kModelPath = "/v1/models/";

// In a time that does not depend on where they differ.
bool AreEqual(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < b.size(); ++i)
    difference |=
        static_cast<unsigned char>(b[i]) ^ static_cast<unsigned char>(i < a.size() ? a[i] : 0);
  return difference == 0;
}

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

uint64_t RandomWord() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

ApiError Invalid(std::string message, std::string param, std::string code = "invalid_value") {
  return {.status = 400,
          .message = std::move(message),
          .param = std::move(param),
          .code = std::move(code)};
}

std::string_view FieldOf(const CompletionRequest& request) {
  return request.is_chat ? "messages" : "prompt";
}

}  // namespace

ServeApi::ServeApi(ServeEngine& engine, const ServedText& text, ServeApiOptions options)
    : engine_(engine),
      text_(text),
      options_(std::move(options)),
      created_(Now()),
      next_id_(RandomWord()) {}

bool ServeApi::IsAuthorized(std::string_view authorization) const {
  if (options_.bearer_tokens.empty()) return true;
  constexpr std::string_view kScheme = "Bearer ";
  const bool is_bearer = authorization.starts_with(kScheme);
  const std::string_view token = is_bearer ? authorization.substr(kScheme.size()) : "";
  bool known = false;
  for (const std::string& each : options_.bearer_tokens) known |= AreEqual(token, each);
  return is_bearer && known;
}

std::optional<ApiError> ServeApi::Check(std::string_view method, std::string_view path,
                                        std::string_view authorization,
                                        std::string_view origin) const {
  if (path.starts_with(kModelPath)) path = "/v1/models";
  const auto route =
      std::find_if(kRoutes.begin(), kRoutes.end(), [&](const Route& r) { return r.path == path; });
  const bool is_open = route != kRoutes.end() && route->is_open;
  if (!is_open && !IsAuthorized(authorization))
    return ApiError{.status = 401,
                    .message =
                        "the Authorization header must be \"Bearer \" and a token that this "
                        "server knows",
                    .code = "invalid_api_key"};
  if (!is_open && !origin.empty() && options_.bearer_tokens.empty())
    return ApiError{.status = 403,
                    .message =
                        "web pages (requests with the header Origin) are answered only "
                        "where tokens are asked for: --token-file",
                    .code = "origin_not_allowed"};
  if (route == kRoutes.end())
    return ApiError{.status = 404,
                    .message = fmt::format("there is no {}", path.substr(0, 200)),
                    .code = "not_found"};
  if (method != route->method && !(method == "HEAD" && route->method == "GET"))
    return ApiError{.status = 405,
                    .message = fmt::format("{} takes {}", route->path, route->method),
                    .code = "method_not_allowed",
                    .allow = route->method == "GET" ? "GET, HEAD" : std::string(route->method)};
  return std::nullopt;
}

std::shared_ptr<ReplyBuffer> ServeApi::Answer(std::string_view, std::string_view path,
                                              std::string_view body) {
  if (path == "/v1/completions") return Complete(ParseCompletion(body, options_.limits));
  if (path == "/v1/chat/completions") return Complete(ParseChat(body, options_.limits));
  auto reply = std::make_shared<ReplyBuffer>();
  if (path == "/tokenize") {
    Tokenize(body, *reply);
  } else if (path == "/detokenize") {
    Detokenize(body, *reply);
  } else if (path == "/tokenizer_info") {
    reply->Whole({}, TokenizerInfo());
  } else if (path == "/health") {
    reply->Whole({.status = engine_.WhyNotReady().empty() ? 200 : 503}, Health());
  } else if (path == "/metrics") {
    reply->Whole({.content_type = "text/plain; version=0.0.4; charset=utf-8"},
                 engine_.figures().PrometheusText());
  } else if (path.starts_with(kModelPath) && path.substr(kModelPath.size()) != options_.model) {
    reply->Error({.status = 404,
                  .message = fmt::format("there is no model {}; there is {}",
                                         path.substr(kModelPath.size(), 200), options_.model),
                  .code = "model_not_found"});
  } else {
    const Json model = ParseOrderedJson(Models());
    reply->Whole({}, DumpJson(path == "/v1/models" ? model : model["data"][0]));
  }
  return reply;
}

std::string ServeApi::Models() const {
  return DumpJson(Json{{"object", "list"},
                       {"data", Json::array({{{"id", options_.model},
                                              {"object", "model"},
                                              {"created", created_},
                                              {"owned_by", "millrace"},
                                              {"max_model_len", engine_.limits().max_length},
                                              {"weight_version", engine_.weight_version()}}})}},
                  {.replace = true});
}

std::string ServeApi::Health() const {
  const std::string why = engine_.WhyNotReady();
  return DumpJson(
      Json{{"status", why.empty() ? "ok" : why}, {"weight_version", engine_.weight_version()}},
      {.replace = true});
}

std::string ServeApi::TokenizerInfo() const {
  const auto name = [&](std::optional<int32_t> id) {
    const bool has_text = id && !text_.Bytes(*id).empty();
    return has_text ? Json(text_.Name(*id)) : Json(nullptr);
  };
  std::optional<int32_t> bos;
  if (const Tokenizer* tokenizer = text_.tokenizer(); tokenizer && !tokenizer->prefix().empty())
    bos = tokenizer->prefix().front();
  const char* const kinds[] = {"byte-level BPE", "bytes", "unknown"};
  return DumpJson(
      Json{{"tokenizer_class", kinds[static_cast<size_t>(text_.kind())]},
           {"bos_token", name(bos)},
           {"eos_token", name(options_.end_token ? options_.end_token : text_.chat_end_token())},
           {"pad_token", nullptr},
           {"chat_template", text_.chat() ? Json(JinjaOf(*text_.chat())) : Json(nullptr)},
           {"model_max_length", engine_.limits().max_length}},
      {.replace = true});
}

void ServeApi::Tokenize(std::string_view body, ReplyBuffer& reply) const {
  const auto parsed = ParseTokenize(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return reply.Error(*error);
  const auto& request = std::get<TokenizeRequest>(parsed);
  try {
    const std::vector<int32_t> ids = text_.Encode(request.text, request.add_special_tokens);
    reply.Whole({}, DumpJson(Json{{"tokens", ids},
                                  {"count", ids.size()},
                                  {"max_model_len", engine_.limits().max_length}}));
  } catch (const Error& error) {
    reply.Error(Invalid(error.what(), "prompt"));
  }
}

void ServeApi::Detokenize(std::string_view body, ReplyBuffer& reply) const {
  const auto parsed = ParseDetokenize(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return reply.Error(*error);
  const std::vector<int32_t>& ids = std::get<DetokenizeRequest>(parsed).tokens;
  for (const int32_t id : ids)
    if (id >= engine_.limits().vocab)
      return reply.Error(Invalid(
          fmt::format("tokens has {}, outside the vocabulary of {}", id, engine_.limits().vocab),
          "tokens"));
  reply.Whole({}, DumpJson(Json{{"prompt", text_.Decode(ids)}}));
}

std::optional<ApiError> ServeApi::Encode(const CompletionRequest& request,
                                         std::vector<std::vector<int32_t>>& prompts) const {
  const std::string field(FieldOf(request));
  const int64_t most_bytes = text_.MostBytes(engine_.limits().max_length);
  const auto too_long = [&](int64_t bytes) {
    return Invalid(fmt::format("{} has {} bytes, which are more than the {} tokens that a sequence "
                               "can have",
                               field, bytes, engine_.limits().max_length),
                   field, "context_length_exceeded");
  };
  try {
    if (request.is_chat) {
      int64_t bytes = 0;
      for (const ChatMessage& message : request.messages) bytes += std::ssize(message.content);
      if (bytes > most_bytes) return too_long(bytes);
      prompts.push_back(text_.EncodeChat(request.messages));
    }
    for (const PromptInput& input : request.prompts) {
      if (const auto* ids = std::get_if<std::vector<int32_t>>(&input)) {
        prompts.push_back(*ids);
        continue;
      }
      const auto& text = std::get<std::string>(input);
      if (std::ssize(text) > most_bytes) return too_long(std::ssize(text));
      prompts.push_back(text_.Encode(text, true));
    }
  } catch (const Error& error) {
    return Invalid(error.what(), field);
  }
  return std::nullopt;
}

std::optional<ApiError> ServeApi::AddRequest(const CompletionRequest& request,
                                             std::vector<int32_t> prompt,
                                             std::vector<GenerationRequest>& requests) const {
  constexpr int64_t kCompletionTokens = 16;  // where a completion does not say
  const TokenModelLimits& limits = engine_.limits();
  const int64_t room = std::max<int64_t>(limits.max_length - std::ssize(prompt), 1);
  const int64_t most = options_.max_tokens > 0 ? std::min(options_.max_tokens, room) : room;
  GenerationRequest& made = requests.emplace_back();
  made.prompt = std::move(prompt);
  made.max_tokens = std::max<int64_t>(
      1, request.max_tokens.value_or(request.is_chat ? most : std::min(most, kCompletionTokens)));
  made.samples = request.samples;
  made.sampling = request.sampling;
  if (!request.has_seed) made.sampling.seed = RandomWord();
  made.score_prompt = request.echo && request.logprobs;
  if (options_.end_token) made.stop_tokens.push_back(*options_.end_token);
  for (const std::string& stop : request.stop)
    if (const auto token = text_.StopToken(stop)) made.stop_tokens.push_back(*token);
  if (request.is_chat && text_.chat_end_token())
    made.stop_tokens.push_back(*text_.chat_end_token());
  if (options_.max_tokens > 0 && made.max_tokens > options_.max_tokens)
    return Invalid(
        fmt::format("max_tokens is {}; allowed is up to {}", made.max_tokens, options_.max_tokens),
        "max_tokens");
  const auto refusal = RefusalOf(made, limits);
  if (!refusal) return std::nullopt;
  const bool too_long = refusal->reason == RefusalReason::kTooLong;
  return Invalid(refusal->message, std::string(FieldOf(request)),
                 too_long ? "context_length_exceeded" : std::string(Name(refusal->reason)));
}

std::shared_ptr<ReplyBuffer> ServeApi::Complete(std::variant<CompletionRequest, ApiError> parsed) {
  auto out = std::make_shared<ReplyBuffer>();
  const auto refuse = [&](const ApiError& error) {
    engine_.figures().Refuse();
    out->Error(error);
    return out;
  };
  if (const auto* error = std::get_if<ApiError>(&parsed)) return refuse(*error);
  auto& request = std::get<CompletionRequest>(parsed);
  if (!request.model.empty() && request.model != options_.model)
    return refuse({.status = 404,
                   .message = fmt::format("there is no model {}; there is {}",
                                          request.model.substr(0, 200), options_.model),
                   .param = "model",
                   .code = "model_not_found"});
  std::vector<std::vector<int32_t>> prompts;
  if (const auto error = Encode(request, prompts)) return refuse(*error);
  std::vector<GenerationRequest> requests;
  for (const std::vector<int32_t>& prompt : prompts)
    if (const auto error = AddRequest(request, prompt, requests)) return refuse(*error);
  const char* const kind = request.is_chat ? "chatcmpl" : "cmpl";
  const CompletionIdentity identity{fmt::format("{}-{:016x}", kind, next_id_++), options_.model,
                                    Now()};
  auto sink = std::make_shared<CompletionReply>(std::move(request), std::move(prompts), identity,
                                                text_, out);
  const auto submitted = engine_.Submit(std::move(requests), std::move(sink));
  if (const auto* error = std::get_if<ApiError>(&submitted)) return refuse(*error);
  out->OnAbandon([this, job = std::get<ServeEngine::JobId>(submitted)] { engine_.Cancel(job); });
  return out;
}

}  // namespace millrace
