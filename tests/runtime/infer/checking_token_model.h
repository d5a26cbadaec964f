// A TokenModel without a model, which holds its caller to every line of token_model.h. What it
// draws is a hash of the tokens that lie in the sequence's pages, of the seed and of the number of
// tokens drawn: a page that is another's, a position left out or a sequence mixed up changes all
// that follows. What a sequence has cached, or found in a prefix that it shares, must not be
// written again, not even with the same tokens.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "runtime/infer/request.h"
#include "runtime/infer/token_model.h"

namespace millrace::test {

class CheckingTokenModel : public TokenModel {
 public:
  explicit CheckingTokenModel(const TokenModelLimits& limits);

  const TokenModelLimits& limits() const override { return limits_; }
  SampledToken Prefill(const PrefillRows& rows) override;
  void PrefillTogether(std::span<const PrefillRows> rows, std::span<SampledToken> drawn) override;
  void Score(const ScoreRows& rows, std::span<SampledToken> scores) override;
  void Launch(std::span<const DecodeRow> rows) override;
  void Collect(std::span<SampledToken* const> drawn) override;
  void Drop() noexcept override;

  // What it draws after `tokens`.
  static SampledToken Draw(std::span<const int32_t> tokens, const Sampling& sampling, int64_t drawn,
                           int64_t vocab);

  // What it makes of `next` behind `tokens`.
  static SampledToken ScoreOf(std::span<const int32_t> tokens, int32_t next, int32_t top,
                              int64_t vocab);

  // New weights: nothing is cached any more.
  void Enter();

  int64_t prefills = 0, together = 0, decodes = 0, scored = 0;  // calls
  int64_t computed = 0, shared = 0;                             // tokens of prompts
  int64_t most_rows = 0;                                        // of one step
  int64_t most_in_flight = 0;                                   // steps
  int64_t unread = 0;                          // rows that were launched and of no use
  std::function<void(char call)> before = {};  // 'p', 't', 's' or 'd', ahead of each call
  std::function<void()> before_collect = {};

 private:
  struct Slot {
    int64_t length = -1;  // cached; -1: never taken
    int64_t drawn = 0;
    std::vector<int32_t> pages;
    std::vector<int64_t> written;  // by position: when, as the sequence knows it
  };
  struct Row {
    int64_t slot = 0;
    std::vector<int32_t> pages;
    SampledToken drawn;
  };
  using Step = std::vector<Row>;
  const Row* InFlight(int64_t slot) const;  // in the step launched last; null: none
  void CheckPagesAreFree(const PrefillRows& rows) const;
  SampledToken CacheAndDraw(const PrefillRows& rows);
  void Begin(const PrefillRows& rows, Slot& slot) const;
  void Cache(const PrefillRows& rows);
  size_t CellOf(std::span<const int32_t> pages, int64_t position) const;
  void Write(int64_t slot, int64_t position, std::span<const int32_t> pages, int32_t token);
  std::vector<int32_t> Read(int64_t slot, std::span<const int32_t> pages, int64_t length) const;
  void CheckPages(std::span<const int32_t> pages, int64_t length) const;

  TokenModelLimits limits_;
  std::vector<Slot> slots_;
  struct Cell {
    int64_t position = -1, written = -1;
    int32_t token = 0;
    std::vector<int32_t> before = {};  // the sequence's tokens ahead of it
  };
  std::vector<Cell> cells_;  // [pages, page_tokens]
  int64_t writes_ = 0;
  std::deque<Step> steps_;  // in flight
};

}  // namespace millrace::test
