// The bodies of requests: JSON text to typed requests, or the error that answers them.
//
//   POST /v1/completions       prompt (text, texts, ids, or lists of ids), echo, logprobs
//   POST /v1/chat/completions  messages, logprobs, top_logprobs, max_completion_tokens
//   both                       model, max_tokens, n, temperature, top_p, top_k, min_p, seed, stop,
//                              stream, stream_options, user
//   POST /tokenize             prompt, add_special_tokens
//   POST /detokenize           tokens
//
// A field of these APIs, or of vLLM's, that changes answers and is not there (logit_bias, tools,
// penalties, best_of, suffix, min_tokens, ...) is refused unless it has the value that changes
// nothing. The list is kUnsupported of the source; keys that neither it nor this table names are
// ignored, as clients expect. null is a key left out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/infer/token_model.h"
#include "runtime/serve/api_error.h"
#include "runtime/text/chat/chat_template.h"

namespace millrace {

struct RequestLimits {
  int64_t prompts = 256;  // of one request
  int64_t samples = 256;  // of all its prompts together
  int64_t top = 20;       // likeliest tokens whose log-probabilities are given
};

using PromptInput = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest {
  bool is_chat = false;
  std::string model;                  // "": not said
  std::vector<PromptInput> prompts;   // of completions; at least one, none empty
  std::vector<ChatMessage> messages;  // of chat; at least one
  std::optional<int64_t> max_tokens;  // of each answer; with echo 0 is allowed
  int64_t samples = 1;                // answers to each prompt
  Sampling sampling;                  // `top` as asked for
  bool has_seed = false;              // else any will do
  std::vector<std::string> stop;      // none empty
  bool logprobs = false, echo = false;
  bool stream = false, include_usage = false;
};

struct TokenizeRequest {
  std::string text;
  bool add_special_tokens = true;
};

struct DetokenizeRequest {
  std::vector<int32_t> tokens;
};

std::variant<CompletionRequest, ApiError> ParseCompletion(std::string_view body,
                                                          const RequestLimits& limits);
std::variant<CompletionRequest, ApiError> ParseChat(std::string_view body,
                                                    const RequestLimits& limits);
std::variant<TokenizeRequest, ApiError> ParseTokenize(std::string_view body);
std::variant<DetokenizeRequest, ApiError> ParseDetokenize(std::string_view body);

}  // namespace millrace
