#include "runtime/run/generate/engine_token_model.h"

#include <algorithm>

#include "comm/comm_set.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"
#include "runtime/exec/engine.h"
#include "runtime/plan/nodes/attention/cached_rows.h"
#include "runtime/plan/step_plan.h"
#include "runtime/run/generate/host_sampler.h"
#include "runtime/run/generate/inference_plans.h"

namespace millrace {
namespace {

// Of a row of which nothing is asked: the draw that costs least.
constexpr SampleParams kNotAsked{.temperature = 0};

// The smallest of `sizes`, ascending, that is at least `rows`; else the largest.
int64_t SizeFor(const std::vector<int64_t>& sizes, int64_t rows) {
  const auto at = std::lower_bound(sizes.begin(), sizes.end(), rows);
  return at == sizes.end() ? sizes.back() : *at;
}

}  // namespace

EngineTokenModel::EngineTokenModel(Engine& engine, const Config& config)
    : engine_(engine),
      prefill_(config.inference.PrefillRows(config.model.seq_len)),
      decode_(config.inference.DecodeRows()),
      goes_back_(!config.model.Has('M')),
      rows_(std::max(prefill_.back(), decode_.back())),
      pages_of_sequence_(config.inference.PagesOfSequence(config.model.seq_len)),
      contents_(config.inference.Pages(config.model.seq_len), config.inference.page_tokens) {
  if (config.parallel.expert > 1)
    together_ = &engine.comms().Of({Axis::kExpert, StreamId::kExchange});
  limits_.slots = config.inference.slots;
  limits_.pages = config.inference.Pages(config.model.seq_len);
  limits_.page_tokens = config.inference.page_tokens;
  limits_.max_length = config.inference.MaxLength(config.model.seq_len);
  limits_.max_chunk = prefill_.back();
  limits_.max_scored = decode_.back();
  limits_.vocab = config.model.Vocab();
  limits_.max_together = decode_.back();
  limits_.shares_prefixes = goes_back_;
  const View* top = engine.plans().Of(PrefillPlan(prefill_.front())).FindOutput("top_ids");
  limits_.top = top->layout.numel();  // of one row
  has_pages_ = static_cast<bool>(engine.plans().states.Find(kPagesState));
  cached_.resize(static_cast<size_t>(limits_.slots));
  row_state_.resize(static_cast<size_t>(3 * rows_));
  page_state_.resize(static_cast<size_t>(limits_.slots * pages_of_sequence_));
  params_.resize(static_cast<size_t>(limits_.slots));
  limits_.steps_ahead = TakesStepsAhead() && engine.device().captures();
}

bool EngineTokenModel::TakesStepsAhead() const {
  return together_ == nullptr && limits_.slots <= decode_.back();
}

void EngineTokenModel::Enter() {
  Drop();
  engine_.BeginEra(DecodePlan(decode_.front()));
  std::fill(cached_.begin(), cached_.end(), 0);
  contents_.Clear();
}

void EngineTokenModel::Begin(const PrefillRows& rows) {
  const int64_t length = std::ssize(rows.shared);
  MR_CHECK(rows.slot >= 0 && rows.slot < limits_.slots, "slot {} of {}", rows.slot, limits_.slots);
  MR_CHECK(length == rows.first && limits_.shares_prefixes && length % limits_.page_tokens == 0,
           "a sequence in slot {} begins at position {} behind a shared prefix of {} tokens; {}",
           rows.slot, rows.first, length,
           limits_.shares_prefixes
               ? fmt::format("allowed are multiples of {}", limits_.page_tokens)
               : "of its mixers' states there is the last only: none can be shared");
  CheckPages(rows.slot, length, rows.pages);
  const auto without = contents_.FirstWithout(rows.pages, rows.shared);
  MR_CHECK(!without, "page {} does not hold the tokens of the prefix of {} that slot {} shares",
           *without, length, rows.slot);
  cached_[static_cast<size_t>(rows.slot)] = length;
}

void EngineTokenModel::Check(const Tokens& rows) const {
  MR_CHECK(rows.slot >= 0 && rows.slot < limits_.slots, "slot {} of {}", rows.slot, limits_.slots);
  const int64_t cached = cached_[static_cast<size_t>(rows.slot)],
                end = rows.first + std::ssize(rows.tokens);
  MR_CHECK(rows.first >= 0 && rows.first <= cached && !rows.tokens.empty(),
           "{} tokens at position {} of slot {}, of which {} are cached", rows.tokens.size(),
           rows.first, rows.slot, cached);
  MR_CHECK(goes_back_ || rows.first == 0 || rows.first == cached,
           "position {} of slot {}, of which {} are cached: its mixers' states cannot go back",
           rows.first, rows.slot, cached);
  CheckPages(rows.slot, end, rows.pages);
  for (const int32_t token : rows.tokens)
    MR_CHECK(token >= 0 && token < limits_.vocab, "token {} of {}", token, limits_.vocab);
}

template <class Rows>
void EngineTokenModel::CheckSlots(std::span<const Rows> rows) const {
  std::vector<bool> seen(static_cast<size_t>(limits_.slots));
  for (const Rows& row : rows) {
    MR_CHECK(row.slot >= 0 && row.slot < limits_.slots && !seen[static_cast<size_t>(row.slot)],
             "slot {} of {}: each has one place in a call at most", row.slot, limits_.slots);
    seen[static_cast<size_t>(row.slot)] = true;
  }
}

void EngineTokenModel::CheckPages(int64_t slot, int64_t length,
                                  std::span<const int32_t> pages) const {
  MR_CHECK_LE(length, limits_.max_length, "positions of the sequence in slot {}", slot);
  const int64_t count = CeilDiv(length, limits_.page_tokens);
  MR_CHECK_LE(count, std::ssize(pages), "pages of {} positions of the sequence in slot {}", length,
              slot);
  for (const int32_t page : pages.first(static_cast<size_t>(count)))
    MR_CHECK(page >= 0 && page < limits_.pages, "page {} of {} of the sequence in slot {}", page,
             limits_.pages, slot);
}

// From `row` of the plan's rows on: position, slot and pages.
void EngineTokenModel::PlaceAt(const Tokens& rows, int64_t row) {
  const int64_t count = std::ssize(rows.tokens), end = rows.first + count;
  for (int64_t i = 0; i < count; ++i) {
    int32_t* const state = row_state_.data() + row + i;
    state[rows_] = static_cast<int32_t>(rows.first + i);
    state[2 * rows_] = static_cast<int32_t>(rows.slot);
  }
  int32_t* const pages = page_state_.data() + rows.slot * pages_of_sequence_;
  const auto used = rows.pages.first(static_cast<size_t>(CeilDiv(end, limits_.page_tokens)));
  if (!std::equal(used.begin(), used.end(), pages)) {
    std::copy(used.begin(), used.end(), pages);
    pages_changed_ = true;
  }
  cached_[static_cast<size_t>(rows.slot)] = end;
}

void EngineTokenModel::Place(const Tokens& rows, int64_t row) {
  Check(rows);
  std::copy(rows.tokens.begin(), rows.tokens.end(), row_state_.begin() + row);
  PlaceAt(rows, row);
  contents_.Write(rows.pages, rows.first, rows.tokens);
}

// What its page holds then is known when the step in flight is collected.
EngineTokenModel::Fed EngineTokenModel::PlaceFed(const DecodeRow& row, int64_t at) {
  constexpr int32_t kSome = 0;  // as good as any for the checks
  const Tokens rows{row.slot, row.length, {&kSome, 1}, row.pages};
  Check(rows);
  PlaceAt(rows, at);
  contents_.WillWrite(row.pages, row.length);
  return {RowInFlight(row.slot), row.length, row.pages};
}

int64_t EngineTokenModel::RowInFlight(int64_t slot) const {
  MR_CHECK(!steps_.empty(), "the token of slot {} is in flight, but no step is", slot);
  const std::vector<int64_t>& slots = steps_.back().slots;
  const auto found = std::find(slots.begin(), slots.end(), slot);
  MR_CHECK(found != slots.end(), "the token of slot {} is in flight, but no row of it is", slot);
  return found - slots.begin();
}

void EngineTokenModel::Clear() {
  std::fill(row_state_.begin(), row_state_.end(), -1);
  std::fill_n(row_state_.begin() + rows_, rows_, 0);
  std::fill(params_.begin(), params_.end(), kNotAsked);
}

void EngineTokenModel::Ask(int64_t row, const Sampling& sampling, int64_t drawn) {
  MR_CHECK_LE(sampling.top, limits_.top, "likeliest tokens whose log-probabilities are asked for");
  params_[static_cast<size_t>(row)] = ParamsOf(sampling, drawn);
}

int64_t EngineTokenModel::Await(const Turn& own) {
  if (together_ == nullptr) return own.rows;
  for (;;) {
    const Turn turn = NextTurn(*together_, own);
    if (turn.kind == own.kind) return turn.rows;
    RunIdle(turn);
  }
}

void EngineTokenModel::RunIdle(const Turn& turn) {
  Clear();
  Run(turn.kind == Turn::Kind::kPrefill ? PrefillPlan(turn.rows) : DecodePlan(turn.rows),
      turn.rows);
}

void EngineTokenModel::Finish() {
  if (together_ == nullptr) return;
  for (Turn turn = NextTurn(*together_, {}); turn != Turn(); turn = NextTurn(*together_, {}))
    RunIdle(turn);
}

EngineTokenModel::Launched EngineTokenModel::Start(const std::string& plan, int64_t size,
                                                   int64_t drawn,
                                                   std::span<const std::pair<int64_t, Fed>> fed) {
  constexpr auto kWord = static_cast<int64_t>(sizeof(int32_t));
  EraRun run{.plan = plan};
  const std::span<const int32_t> rows = row_state_;
  const auto write = [&](int64_t begin, int64_t end) {
    if (begin < end)
      run.writes.push_back({kRowsState, begin * kWord,
                            std::as_bytes(rows.subspan(static_cast<size_t>(begin),
                                                       static_cast<size_t>(end - begin)))});
  };
  int64_t known = 0;  // rows whose tokens are written, or fed
  for (const auto& [row, of] : fed) {
    write(known, row);
    known = row + 1;
    StateFeed* const last = run.feeds.empty() ? nullptr : &run.feeds.back();
    if (last != nullptr && last->offset + last->bytes == row * kWord &&
        last->from + last->bytes == of.from * kWord)
      last->bytes += kWord;
    else
      run.feeds.push_back({.state = kRowsState,
                           .offset = row * kWord,
                           .run = steps_.back().rest.run,
                           .read = 0,
                           .from = of.from * kWord,
                           .bytes = kWord});
  }
  write(known, size);
  write(rows_, rows_ + size);
  write(2 * rows_, 2 * rows_ + size);
  const std::span<const SampleParams> params = params_;
  const int64_t draws = engine_.plans().Of(plan).FindOutput("token")->layout.numel();
  run.writes.push_back(
      {kSamplingState, 0, std::as_bytes(params.first(static_cast<size_t>(draws)))});
  if (pages_changed_ && has_pages_)
    run.writes.push_back({kPagesState, 0, std::as_bytes(std::span(page_state_))});
  const std::span<const SampleParams> asked = params.first(static_cast<size_t>(drawn));
  if (drawn > 0) run.reads = {{"token", drawn * kWord}, {"logprob", drawn * kWord}};
  if (std::any_of(asked.begin(), asked.end(), [](const SampleParams& p) { return p.top > 0; }))
    for (const char* const output : {"top_ids", "top_logprobs"})
      run.reads.push_back({output, drawn * limits_.top * kWord});
  Launched launched{engine_.LaunchInEra(run), {asked.begin(), asked.end()}};
  pages_changed_ = false;  // a launch that is refused has written none
  return launched;
}

std::vector<int32_t> EngineTokenModel::Take(const Launched& launched,
                                            std::span<SampledToken* const> drawn) {
  const std::vector<std::span<const std::byte>>& reads = engine_.CollectInEra(launched.run);
  // What ran before has ended, too.
  for (; !undrawn_.empty() && undrawn_.front() < launched.run; undrawn_.pop_front())
    engine_.CollectInEra(undrawn_.front());
  if (drawn.empty()) return {};
  const auto values = [&](size_t read) {
    return reinterpret_cast<const int32_t*>(reads[read].data());
  };
  const auto floats = [&](size_t read) {
    return reinterpret_cast<const float*>(reads[read].data());
  };
  const std::vector<int32_t> tokens(values(0), values(0) + drawn.size());
  for (size_t r = 0; r < drawn.size(); ++r) {
    if (drawn[r] == nullptr) continue;
    const SampleParams& asked = launched.asked[r];
    MR_REQUIRE(ErrorCode::kNonFinite, tokens[r] != kNoToken,
               "a logit of the token that follows {} drawn ones is not finite", asked.drawn);
    *drawn[r] = {.token = tokens[r], .logprob = floats(1)[r], .top = {}};
    for (size_t i = r * static_cast<size_t>(limits_.top);
         i < r * static_cast<size_t>(limits_.top) + static_cast<size_t>(asked.top); ++i)
      drawn[r]->top.push_back({values(2)[i], floats(3)[i]});
  }
  return tokens;
}

// Of runs that draw nothing one may be in flight: the next one is written and launched meanwhile.
void EngineTokenModel::Run(const std::string& plan, int64_t size, std::span<SampledToken> sampled) {
  const Launched launched = Start(plan, size, std::ssize(sampled));
  if (sampled.empty() && together_ == nullptr) {
    undrawn_.push_back(launched.run);
    if (undrawn_.size() < 2) return;
    engine_.CollectInEra(undrawn_.front());
    undrawn_.pop_front();
    return;
  }
  std::vector<SampledToken*> drawn;
  for (SampledToken& token : sampled) drawn.push_back(&token);
  Take(launched, drawn);
}

// The rows are a plan's last ones: of the last one the plan draws.
SampledToken EngineTokenModel::Prefill(const PrefillRows& rows) {
  const int64_t count = std::ssize(rows.tokens);
  MR_CHECK_LE(count, limits_.max_chunk, "tokens of one prefill");
  const int64_t size = Await({Turn::Kind::kPrefill, SizeFor(prefill_, count)});
  Clear();
  if (rows.sampling != nullptr) Ask(0, *rows.sampling, 0);
  if (!rows.shared.empty()) Begin(rows);
  Place({rows.slot, rows.first, rows.tokens, rows.pages}, size - count);
  SampledToken sampled;
  Run(PrefillPlan(size), size, {&sampled, rows.sampling != nullptr ? size_t{1} : size_t{0}});
  return sampled;
}

// A plan that decodes has logits of all its rows, and takes several of a sequence: of each sequence
// the last one's draw counts.
void EngineTokenModel::PrefillTogether(std::span<const PrefillRows> rows,
                                       std::span<SampledToken> drawn) {
  MR_CHECK_EQ(rows.size(), drawn.size(), "sequences and their first tokens");
  if (rows.size() == 1 && std::ssize(rows[0].tokens) <= limits_.max_chunk) {
    drawn[0] = Prefill(rows[0]);
    return;
  }
  CheckSlots(rows);
  int64_t count = 0;
  for (const PrefillRows& of : rows) count += std::ssize(of.tokens);
  MR_CHECK_LE(count, limits_.max_together, "tokens of one call");
  const int64_t size = Await({Turn::Kind::kDecode, SizeFor(decode_, count)});
  Clear();
  int64_t end = 0;
  for (const PrefillRows& of : rows) {
    const int64_t begin = end;
    end += std::ssize(of.tokens);
    Ask(end - 1, *of.sampling, 0);
    if (!of.shared.empty()) Begin(of);
    Place({of.slot, of.first, of.tokens, of.pages}, begin);
  }
  std::vector<SampledToken> sampled(static_cast<size_t>(count));
  Run(DecodePlan(size), size, sampled);
  auto last = sampled.begin() - 1;
  for (size_t s = 0; s < rows.size(); ++s)
    drawn[s] = std::move(*(last += std::ssize(rows[s].tokens)));
}

// A plan that decodes has logits of all its rows; these are successive ones of one sequence. Nobody
// has the rows behind them.
void EngineTokenModel::Score(const ScoreRows& rows, std::span<SampledToken> scores) {
  MR_CHECK_EQ(rows.tokens.size(), rows.next.size(), "tokens and those that follow them");
  MR_CHECK_EQ(rows.tokens.size(), scores.size(), "tokens and results");
  const int64_t count = std::ssize(rows.tokens);
  MR_CHECK_LE(count, limits_.max_scored, "tokens of one call");
  const int64_t size = Await({Turn::Kind::kDecode, SizeFor(decode_, count)});
  Clear();
  for (int64_t i = 0; i < count; ++i) {
    const int32_t next = rows.next[static_cast<size_t>(i)];
    MR_CHECK(next >= 0 && next < limits_.vocab, "token {} of {}", next, limits_.vocab);
    Ask(i, {.temperature = 0, .top = rows.top}, 0);
    params_[static_cast<size_t>(i)].given = next + 1;
  }
  Place({rows.slot, rows.first, rows.tokens, rows.pages}, 0);
  Run(DecodePlan(size), size, scores);
}

// Of several plans all but the last are waited for.
void EngineTokenModel::Launch(std::span<const DecodeRow> rows) {
  MR_CHECK(!rows.empty(), "a step has rows");
  MR_CHECK_LT(steps_.size(), TakesStepsAhead() ? 2u : 1u, "steps in flight ahead of another");
  CheckSlots(rows);
  Step step;
  for (int64_t begin = 0; begin < std::ssize(rows);) {
    const int64_t left = std::ssize(rows) - begin,
                  size = Await({Turn::Kind::kDecode, SizeFor(decode_, left)}),
                  count = std::min(size, left);
    Clear();
    std::vector<std::pair<int64_t, Fed>> fed;
    for (int64_t i = 0; i < count; ++i) {
      const DecodeRow& row = rows[static_cast<size_t>(begin + i)];
      Ask(i, *row.sampling, row.drawn);
      if (row.token == kTokenInFlight)
        fed.push_back({i, PlaceFed(row, i)});
      else
        Place({row.slot, row.length, {&row.token, 1}, row.pages}, i);
    }
    begin += count;
    if (begin < std::ssize(rows)) {
      const size_t first = step.drawn.size();
      step.drawn.resize(static_cast<size_t>(begin));
      Run(DecodePlan(size), size, std::span(step.drawn).subspan(first));
      continue;
    }
    step.rest = Start(DecodePlan(size), size, count, fed);
    for (const DecodeRow& row : rows.last(static_cast<size_t>(count)))
      step.slots.push_back(row.slot);
    for (auto& [row, of] : fed) step.fed.push_back(of);
  }
  steps_.push_back(std::move(step));
}

void EngineTokenModel::Collect(std::span<SampledToken* const> drawn) {
  MR_CHECK(!steps_.empty(), "no step is in flight");
  Step step = std::move(steps_.front());
  steps_.pop_front();
  MR_CHECK_EQ(drawn.size(), step.drawn.size() + step.slots.size(), "rows of a step and results");
  for (size_t r = 0; r < step.drawn.size(); ++r)
    if (drawn[r] != nullptr) *drawn[r] = std::move(step.drawn[r]);
  const std::vector<int32_t> tokens = Take(step.rest, drawn.subspan(step.drawn.size()));
  if (steps_.empty()) return;
  for (const Fed& fed : steps_.front().fed)
    contents_.Write(fed.pages, fed.position, {&tokens[static_cast<size_t>(fed.from)], 1});
}

void EngineTokenModel::Drop() noexcept {
  if (steps_.empty() && undrawn_.empty()) return;
  engine_.DropInEra();
  steps_.clear();
  undrawn_.clear();
}

}  // namespace millrace
