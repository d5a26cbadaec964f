// Log-probabilities of tokens as the two APIs have them. Internal to runtime/serve.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "runtime/serve/answer_text.h"
#include "runtime/serve/served_text.h"

namespace millrace::serve {

// A token that nothing is ahead of has no log-probability: null.
inline constexpr float kNoLogprob = 1;

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}, an entry each for every token. Among
// the top there are `top` likeliest, and the token itself.
nlohmann::ordered_json CompletionLogprobs(std::span<const ShownToken> tokens,
                                          const ServedText& text);

// {"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal"}.
nlohmann::ordered_json ChatLogprobs(std::span<const ShownToken> tokens, const ServedText& text);

}  // namespace millrace::serve
