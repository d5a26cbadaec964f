#include "runtime/run/generate/window_token_model.h"

#include <algorithm>

#include "kernels/ops/sample_ops.h"
#include "runtime/base/error.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/observe/progress.h"
#include "runtime/run/generate/host_sampler.h"

namespace millrace {
namespace {

constexpr int64_t kSlots = 16;
constexpr int64_t kMaxLength = int64_t{1} << 21;

}  // namespace

WindowTokenModel::WindowTokenModel(Session& session) : session_(session) {
  limits_.slots = limits_.pages = kSlots;
  limits_.page_tokens = limits_.max_length = limits_.max_chunk = limits_.max_scored = kMaxLength;
  limits_.vocab = session.config().model.Vocab();
  limits_.top = std::min(kMaxSampleTop, limits_.vocab);
  tokens_.resize(kSlots);
}

SampledToken WindowTokenModel::Prefill(const PrefillRows& rows) {
  std::vector<int32_t>& tokens = tokens_.at(static_cast<size_t>(rows.slot));
  if (rows.first == 0) tokens.clear();
  MR_CHECK_EQ(rows.first, std::ssize(tokens), "positions of slot {} ahead of a prompt's",
              rows.slot);
  tokens.insert(tokens.end(), rows.tokens.begin(), rows.tokens.end());
  return rows.sampling != nullptr ? Draw(rows.slot, *rows.sampling, 0) : SampledToken{};
}

void WindowTokenModel::PrefillTogether(std::span<const PrefillRows> rows,
                                       std::span<SampledToken> drawn) {
  for (size_t s = 0; s < rows.size(); ++s) drawn[s] = Prefill(rows[s]);
}

void WindowTokenModel::Launch(std::span<const DecodeRow> rows) {
  MR_CHECK(drawn_.empty(), "a step is launched while one is in flight");
  for (const DecodeRow& row : rows) {
    std::vector<int32_t>& tokens = tokens_.at(static_cast<size_t>(row.slot));
    MR_CHECK_EQ(row.length, std::ssize(tokens), "positions of slot {}", row.slot);
    tokens.push_back(row.token);
    drawn_.push_back(Draw(row.slot, *row.sampling, row.drawn));
  }
}

void WindowTokenModel::Collect(std::span<SampledToken* const> drawn) {
  MR_CHECK_EQ(drawn.size(), drawn_.size(), "results and rows of the step in flight");
  for (size_t r = 0; r < drawn.size(); ++r)
    if (drawn[r] != nullptr) *drawn[r] = std::move(drawn_[r]);
  drawn_.clear();
}

void WindowTokenModel::Score(const ScoreRows& rows, std::span<SampledToken> scores) {
  MR_CHECK_EQ(rows.next.size(), scores.size(), "tokens and results");
  for (size_t i = 0; i < rows.tokens.size(); ++i) {
    Prefill({.slot = rows.slot,
             .tokens = rows.tokens.subspan(i, 1),
             .first = rows.first + static_cast<int64_t>(i),
             .pages = rows.pages});
    scores[i] = ScoreToken(LogitsOf(rows.slot), rows.next[i], rows.top);
  }
}

std::vector<float> WindowTokenModel::LogitsOf(int64_t slot) {
  const PhaseScope phase = session_.Phase(RunPhase::kGenerating, draws_++);
  const std::vector<int32_t>& all = tokens_[static_cast<size_t>(slot)];
  const auto length = static_cast<size_t>(session_.config().model.seq_len);
  const size_t used = std::min(all.size(), length);
  std::vector<int32_t> window(length);
  std::copy(all.end() - static_cast<std::ptrdiff_t>(used), all.end(), window.begin());
  return session_.engine().Logits(window, static_cast<int64_t>(used) - 1, limits_.vocab);
}

SampledToken WindowTokenModel::Draw(int64_t slot, const Sampling& sampling, int64_t drawn) {
  return DrawToken(LogitsOf(slot), sampling, drawn);
}

}  // namespace millrace
