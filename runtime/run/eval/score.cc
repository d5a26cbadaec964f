#include "runtime/run/eval/score.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "comm/comm_set.h"
#include "kernels/ops/context_rows.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/observe/progress.h"
#include "runtime/run/session.h"

namespace millrace {
namespace {

// Of a text: tokens [begin, begin + T + 1), of whose T targets the last `counted` are scored.
struct Window {
  size_t text = 0;
  int64_t begin = 0, counted = 0;
};

std::vector<Window> WindowsOf(size_t text, int64_t tokens, int64_t length, int64_t stride) {
  std::vector<Window> windows;
  const int64_t targets = tokens - 1;
  for (int64_t scored = 0, begin = 0; scored < targets; begin += stride) {
    const int64_t end = std::min(begin + length, targets);
    windows.push_back({text, begin, end - scored});
    scored = end;
  }
  return windows;
}

// All ranks' losses, in the order of data ranks.
std::vector<double> OfAllDataRanks(Session& session, const std::vector<double>& own) {
  const Mesh& mesh = session.run().layout.mesh;
  const std::vector<std::string> by_rank = session.engine().comms().world().HostAllGather(
      {reinterpret_cast<const char*>(own.data()), own.size() * sizeof(double)});
  std::vector<double> all(own.size() * static_cast<size_t>(mesh.data_ranks()));
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    MR_CHECK_EQ(by_rank[rank].size(), own.size() * sizeof(double), "losses of rank {}", rank);
    const int data_rank = mesh.Index(static_cast<int>(rank), kDataAxes);
    std::memcpy(all.data() + static_cast<size_t>(data_rank) * own.size(), by_rank[rank].data(),
                by_rank[rank].size());
  }
  return all;
}

// Behind a text's end there are zeros: no row before looks at them.
std::vector<int32_t> TokensOf(std::span<const std::vector<int32_t>> texts, const Window& window,
                              int64_t length) {
  const std::vector<int32_t>& text = texts[window.text];
  std::vector<int32_t> tokens(static_cast<size_t>(length + 1));
  const int64_t end = std::min(window.begin + length + 1, std::ssize(text));
  std::copy(text.begin() + window.begin, text.begin() + end, tokens.begin());
  return tokens;
}

// An output of a plan with a value for each token of a microbatch, dense [B, T].
template <class T>
std::vector<T> OfTokens(Engine& engine, const std::string& plan, std::string_view output) {
  const RunPlans& plans = engine.plans();
  const int64_t all = plans.Of(plan).FindOutput(output)->layout.numel(),
                length = plans.states.tensor(plans.states.Of("tokens")).window.positions;
  std::vector<T> gathered(static_cast<size_t>(all)), values;
  engine.ReadOutput(plan, output, gathered.data(), all * static_cast<int64_t>(sizeof(T)));
  const int64_t ranks = engine.layout().mesh.Size(Axis::kContext), batch = all / length,
                rows = length / ranks;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t t = 0; t < length; ++t) {
      const GatheredPlace place = PlaceOf(ranks, batch, rows, b, t);
      values.push_back(gathered[static_cast<size_t>(place.outer * rows + place.row)]);
    }
  return values;
}

}  // namespace

std::vector<double> TokenLosses(Engine& engine, const HostInputs& inputs) {
  engine.Run("score", inputs);
  return OfTokens<double>(engine, "score", "token_losses");
}

TokenScores ScoresOfTokens(Engine& engine, const HostInputs& inputs) {
  engine.Run("score_likeliest", inputs);
  return {OfTokens<double>(engine, "score_likeliest", "token_losses"),
          OfTokens<int32_t>(engine, "score_likeliest", "likeliest")};
}

std::optional<Refusal> RefusalOf(std::span<const int32_t> text, const ModelConfig& model,
                                 const ScoreOptions& options) {
  if (text.empty()) return Refusal{RefusalReason::kInvalid, "the text has no token"};
  for (const int32_t token : text)
    if (token < 0 || token >= model.Vocab())
      return Refusal{RefusalReason::kVocabulary,
                     fmt::format("the text has the token {}, outside the vocabulary of {}", token,
                                 model.Vocab())};
  if (options.stride == 0 && std::ssize(text) > model.seq_len + 1)
    return Refusal{
        RefusalReason::kTooLong,
        fmt::format("the text has {} tokens; without a stride allowed are {}, model.seq_len + 1",
                    text.size(), model.seq_len + 1)};
  return std::nullopt;
}

std::vector<std::vector<double>> Score(Session& session,
                                       std::span<const std::vector<int32_t>> texts,
                                       const ScoreOptions& options) {
  const ModelConfig& model = session.config().model;
  const int64_t length = model.seq_len;
  MR_REQUIRE(ErrorCode::kInvalidArgument, options.stride >= 0 && options.stride <= length,
             "the stride is {}; allowed is 0 to model.seq_len = {}", options.stride, length);
  std::vector<Window> windows;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (RefusalOf(texts[i], model, options)) continue;
    const int64_t stride = options.stride > 0 ? options.stride : length;
    for (const Window& window : WindowsOf(i, std::ssize(texts[i]), length, stride))
      windows.push_back(window);
  }
  const int64_t batch = session.config().train.micro_batch,
                each = batch * session.run().layout.mesh.data_ranks();
  const PhaseScope phase = session.Phase(RunPhase::kEvaluating);
  std::vector<std::vector<double>> scores(texts.size());
  for (int64_t first = 0; first < std::ssize(windows); first += each) {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < batch; ++i) {
      const int64_t at = first + session.data_rank() * batch + i;
      const Window window =
          at < std::ssize(windows) ? windows[static_cast<size_t>(at)] : windows[0];
      const std::vector<int32_t> row = TokensOf(texts, window, length);
      tokens.insert(tokens.end(), row.begin(), row.end());
    }
    const std::vector<double> losses =
        OfAllDataRanks(session, TokenLosses(session.engine(), tokens));
    for (int64_t i = 0; i < each && first + i < std::ssize(windows); ++i) {
      const Window& window = windows[static_cast<size_t>(first + i)];
      const int64_t end = std::min(length, std::ssize(texts[window.text]) - 1 - window.begin);
      for (int64_t t = end - window.counted; t < end; ++t)
        scores[window.text].push_back(-losses[static_cast<size_t>(i * length + t)]);
    }
  }
  return scores;
}

}  // namespace millrace
