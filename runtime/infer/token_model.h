// What a generator asks of a model that keeps caches: tokens of sequences in, sampled tokens out.
//
// Slots    A model has places for `slots` sequences, each with a state of its own (lengths; what a
//          family keeps per sequence, as Mamba-2 does). A sequence that begins, at position 0 or
//          behind a shared prefix, takes a slot over, whatever was there.
// Pages    Keys and values lie in `pages` pages of `page_tokens` positions. Who calls gives them
//          out: pages[i] of a sequence holds its positions [i*page_tokens, (i+1)*page_tokens). A
//          page belongs to one sequence, unless it lies in a prefix that several share.
// Prefixes A sequence may begin behind tokens that another one has cached in full pages which both
//          have (PrefillRows::shared). Nobody writes these pages from then on, for as long as
//          somebody has them.
// Steps    A step of decode is launched, and collected later. Where limits().steps_ahead, the next
//          one may be launched in between: lengths and counts of tokens drawn are known ahead, and
//          a token that is not drawn yet (kTokenInFlight) goes from step to step without the
//          caller. Prefill, PrefillTogether and Score may be called while a step is in flight. Slot
//          and pages of its rows stay theirs until it is collected or dropped.
// Ranks    Ranks that compute one sequence together (parallel.tensor) make the same calls with the
//          same arguments, and get the same tokens.
// Errors   Error(kInternal): a slot, page or length beyond the limits, too few pages, or a shared
//          prefix that its pages do not hold.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace millrace {

struct TokenModelLimits {
  int64_t slots = 0;
  int64_t pages = 0, page_tokens = 0;
  bool shares_prefixes = false;  // of full pages
  int64_t max_length = 0;        // positions of a sequence, prompt and answer
  int64_t max_chunk = 0;         // tokens of one call of Prefill
  int64_t max_scored = 0;        // tokens of one call of Score
  int64_t max_together = 0;      // tokens of one call of PrefillTogether; 0: nobody calls it
  int64_t vocab = 0;
  int64_t top = 0;  // most tokens whose log-probabilities can be had beside the chosen one's
  // Whether two steps of decode may be in flight, which pays off where the caller's thread works
  // while the model does. Else one is collected before the next is launched.
  bool steps_ahead = false;
};

// How the next token is drawn from the logits: temperature, then top-k, then top-p, then min-p,
// each over what the ones before left; ties by the lower id. The draw is the counter-based
// generator's (base/philox.h) of (seed, number of tokens drawn before in this sequence), so that it
// depends on nothing else.
struct Sampling {
  float temperature = 1;  // 0: the likeliest token
  int32_t top_k = 0;      // 0: all
  float top_p = 1;        // in (0, 1]: fewest likeliest tokens whose probabilities reach it
  float min_p = 0;        // in [0, 1]: at least that share of the likeliest one's probability
  uint64_t seed = 0;
  int32_t top = 0;  // log-probabilities of so many likeliest tokens, at most limits().top

  bool operator==(const Sampling&) const = default;
};

// Log-probabilities are those of the model: of the logits before temperature and cuts.
struct SampledToken {
  int32_t token = 0;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;  // likeliest first; ties by the lower id
};

// Tokens at positions [first, first + tokens.size()) of the sequence in `slot`; those before are
// cached. At most limits().max_chunk.
struct PrefillRows {
  int64_t slot = 0;
  std::span<const int32_t> tokens;
  int64_t first = 0;
  std::span<const int32_t> pages;
  const Sampling* sampling = nullptr;  // null: more of the prompt follows; nothing is drawn
  // Of a sequence that begins behind a prefix which others have cached, its tokens, [first].
  std::span<const int32_t> shared = {};
};

// Tokens of a prompt as PrefillRows has them, of whose followers the log-probabilities are wanted.
// At most limits().max_scored.
struct ScoreRows {
  int64_t slot = 0;
  std::span<const int32_t> tokens;
  int64_t first = 0;
  std::span<const int32_t> pages;
  std::span<const int32_t> next;  // [tokens.size()]: what follows each
  int32_t top = 0;                // as Sampling's
};

// The token that the step in flight draws for the same slot.
inline constexpr int32_t kTokenInFlight = -1;

// What it names stays as it is until the step is collected or dropped.
struct DecodeRow {
  int64_t slot = 0;
  int64_t length = 0;  // positions cached so far, without `token`
  int32_t token = 0;   // at position `length`; or kTokenInFlight
  int64_t drawn = 0;   // tokens drawn before in this sequence, those in flight among them
  std::span<const int32_t> pages;
  const Sampling* sampling = nullptr;  // never null
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  virtual const TokenModelLimits& limits() const = 0;
  // Caches the tokens; where `sampling` is given, draws the first token of the answer. The result
  // is that draw's, else unspecified.
  virtual SampledToken Prefill(const PrefillRows& rows) = 0;
  // As Prefill of each, of different slots: drawn[i], of [rows.size()], follows rows[i], whose
  // `sampling` is not null. At most limits().max_together tokens in all.
  virtual void PrefillTogether(std::span<const PrefillRows> rows,
                               std::span<SampledToken> drawn) = 0;
  // Caches the tokens; scores[i], of [rows.tokens.size()], is rows.next[i] as if it had been drawn.
  virtual void Score(const ScoreRows& rows, std::span<SampledToken> scores) = 0;
  // One step of all rows, each of another slot: caches each row's token and draws what follows it.
  virtual void Launch(std::span<const DecodeRow> rows) = 0;
  // Of the step launched first of those in flight: what followed row i into *drawn[i], of [rows].
  // Null: of a sequence that has ended since; whatever was drawn for it is dropped.
  virtual void Collect(std::span<SampledToken* const> drawn) = 0;
  // Returns when no step is in flight: nobody collects what is. An error of theirs is the next
  // call's, if it is one of the device.
  virtual void Drop() noexcept = 0;
  // Launch and Collect, of all rows, into `sampled` [rows.size()]. None is in flight.
  void Decode(std::span<const DecodeRow> rows, std::span<SampledToken> sampled);
  // Nothing more is drawn for now. Where ranks that have sequences of their own compute together
  // (parallel.expert), each calls it, and it returns when all have; else it does nothing.
  virtual void Finish() {}
};

}  // namespace millrace
