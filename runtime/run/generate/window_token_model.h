// A TokenModel without caches, over a session's generate plan: each token runs the whole window.
// Slow, and exact: what caches have to give. Only the last seq_len tokens of a sequence are seen.
// Pages are counted by whoever calls, and hold nothing here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/infer/token_model.h"
#include "runtime/run/session.h"

namespace millrace {

class WindowTokenModel final : public TokenModel {
 public:
  // The session has the generate plan, and outlives the model. Every rank of it makes the same
  // calls. Error(kNonFinite) by them: a logit is not finite.
  explicit WindowTokenModel(Session& session);

  const TokenModelLimits& limits() const override { return limits_; }
  SampledToken Prefill(const PrefillRows& rows) override;
  void PrefillTogether(std::span<const PrefillRows> rows, std::span<SampledToken> drawn) override;
  void Score(const ScoreRows& rows, std::span<SampledToken> scores) override;
  // Runs the step.
  void Launch(std::span<const DecodeRow> rows) override;
  void Collect(std::span<SampledToken* const> drawn) override;
  void Drop() noexcept override { drawn_.clear(); }

 private:
  std::vector<float> LogitsOf(int64_t slot);  // behind its last token
  SampledToken Draw(int64_t slot, const Sampling& sampling, int64_t drawn);

  Session& session_;
  TokenModelLimits limits_;
  std::vector<std::vector<int32_t>> tokens_;  // by slot
  int64_t draws_ = 0;
  std::vector<SampledToken> drawn_;  // by the step in flight
};

}  // namespace millrace
