// Log-probabilities that a model gives to texts, by the plan "score": the forward of training, with
// its bits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/exec/step_inputs.h"
#include "runtime/infer/request.h"

namespace millrace {

class Engine;
class Session;

// The terms of the loss of one microbatch of this rank's data rank, dense [B, T] as its tokens are:
// summed by rows of a rank they are what training and evaluation sum; 0 of targets that do not
// count. Every rank of the run; those of a data rank get the same.
std::vector<double> TokenLosses(Engine& engine, const HostInputs& inputs);

// The same bits, and beside each target the token that the model would have: the lowest of equals,
// kNoToken where a logit is not finite. By the plan "score_likeliest".
struct TokenScores {
  std::vector<double> losses;
  std::vector<int32_t> likeliest;
};
TokenScores ScoresOfTokens(Engine& engine, const HostInputs& inputs);

struct ScoreOptions {
  // Texts of more than seq_len + 1 tokens: windows of so many, each `stride` tokens behind the one
  // before; of all but the first the last `stride` tokens count. 0: refused. At most seq_len.
  int64_t stride = 0;
};

// Why a text has no score; nothing: it has one.
std::optional<Refusal> RefusalOf(std::span<const int32_t> text, const ModelConfig& model,
                                 const ScoreOptions& options);

// Of each text, the log-probability of each token but its first, given those before it (in its
// window). None of a text that is refused. The session has the score plan. Data ranks share the
// texts; every rank makes the call with the same arguments, and gets the same.
// A text's bits are those of its place in a microbatch: products may round a row otherwise in
// another place.
std::vector<std::vector<double>> Score(Session& session,
                                       std::span<const std::vector<int32_t>> texts,
                                       const ScoreOptions& options);

}  // namespace millrace
