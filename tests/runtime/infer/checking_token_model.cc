#include "tests/runtime/infer/checking_token_model.h"

#include <algorithm>
#include <set>

#include "runtime/base/error.h"
#include "runtime/base/philox.h"

namespace millrace::test {

CheckingTokenModel::CheckingTokenModel(const TokenModelLimits& limits)
    : limits_(limits),
      slots_(static_cast<size_t>(limits.slots)),
      cells_(static_cast<size_t>(limits.pages * limits.page_tokens)) {}

SampledToken CheckingTokenModel::Draw(std::span<const int32_t> tokens, const Sampling& sampling,
                                      int64_t drawn, int64_t vocab) {
  uint64_t hash = sampling.seed ^ static_cast<uint64_t>(drawn) * 0x9e3779b97f4a7c15u;
  for (const int32_t token : tokens) {
    const PhiloxCounter words = PhiloxBlock(hash, 1, static_cast<uint64_t>(token));
    hash = uint64_t{words[0]} << 32 | words[1];
  }
  SampledToken out;
  out.token = static_cast<int32_t>(hash % static_cast<uint64_t>(vocab));
  out.logprob = -static_cast<float>(hash >> 50);
  for (int32_t i = 0; i < sampling.top; ++i) out.top.push_back({i, out.logprob - float(i)});
  return out;
}

void CheckingTokenModel::CheckPages(std::span<const int32_t> pages, int64_t length) const {
  MR_CHECK_LE(length, limits_.max_length, "positions of a sequence");
  MR_CHECK_LE(length, std::ssize(pages) * limits_.page_tokens, "positions and their pages");
  for (const int32_t page : pages)
    MR_CHECK(page >= 0 && page < limits_.pages, "page {} of {}", page, limits_.pages);
  MR_CHECK_EQ(std::set<int32_t>(pages.begin(), pages.end()).size(), pages.size(),
              "different pages of a sequence");
}

void CheckingTokenModel::Enter() {
  MR_CHECK(steps_.empty(), "weights change with {} steps in flight", steps_.size());
  std::fill(cells_.begin(), cells_.end(), Cell{});
  std::fill(slots_.begin(), slots_.end(), Slot{});
}

size_t CheckingTokenModel::CellOf(std::span<const int32_t> pages, int64_t position) const {
  const int64_t page = pages[static_cast<size_t>(position / limits_.page_tokens)];
  return static_cast<size_t>(page * limits_.page_tokens + position % limits_.page_tokens);
}

void CheckingTokenModel::Write(int64_t slot, int64_t position, std::span<const int32_t> pages,
                               int32_t token) {
  MR_CHECK(token >= 0 && token < limits_.vocab, "token {} of {}", token, limits_.vocab);
  cells_[CellOf(pages, position)] = {position, ++writes_, token, Read(slot, pages, position)};
  slots_[static_cast<size_t>(slot)].written.push_back(writes_);
}

std::vector<int32_t> CheckingTokenModel::Read(int64_t slot, std::span<const int32_t> pages,
                                              int64_t length) const {
  std::vector<int32_t> tokens;
  const std::vector<int64_t>& written = slots_[static_cast<size_t>(slot)].written;
  for (int64_t p = 0; p < length; ++p) {
    const Cell& cell = cells_[CellOf(pages, p)];
    MR_CHECK(cell.position == p && cell.written == written[static_cast<size_t>(p)],
             "position {} of slot {}, write {}, lies where write {} was, of position {}", p, slot,
             written[static_cast<size_t>(p)], cell.written, cell.position);
    tokens.push_back(cell.token);
  }
  return tokens;
}

SampledToken CheckingTokenModel::ScoreOf(std::span<const int32_t> tokens, int32_t next, int32_t top,
                                         int64_t vocab) {
  Sampling sampling;
  sampling.seed = static_cast<uint64_t>(next);
  sampling.top = top;
  SampledToken score = Draw(tokens, sampling, 1 << 20, vocab);
  score.token = next;
  return score;
}

void CheckingTokenModel::Score(const ScoreRows& rows, std::span<SampledToken> scores) {
  if (before) before('s');
  ++scored;
  const int64_t count = std::ssize(rows.tokens);
  MR_CHECK(count > 0 && count <= limits_.max_scored, "{} tokens of at most {}", count,
           limits_.max_scored);
  MR_CHECK(rows.next.size() == rows.tokens.size() && scores.size() == rows.tokens.size(),
           "{} tokens, {} followers, {} results", count, rows.next.size(), scores.size());
  MR_CHECK(rows.top <= limits_.top, "top {} of {}", rows.top, limits_.top);
  Cache({.slot = rows.slot, .tokens = rows.tokens, .first = rows.first, .pages = rows.pages});
  const std::vector<int32_t> all = Read(rows.slot, rows.pages, rows.first + count);
  for (int64_t i = 0; i < count; ++i)
    scores[static_cast<size_t>(i)] =
        ScoreOf(std::span(all).first(static_cast<size_t>(rows.first + i + 1)),
                rows.next[static_cast<size_t>(i)], rows.top, limits_.vocab);
}

SampledToken CheckingTokenModel::Prefill(const PrefillRows& rows) {
  if (before) before('p');
  ++prefills;
  const int64_t count = std::ssize(rows.tokens);
  MR_CHECK(count > 0 && count <= limits_.max_chunk, "{} tokens of at most {}", count,
           limits_.max_chunk);
  return CacheAndDraw(rows);
}

void CheckingTokenModel::PrefillTogether(std::span<const PrefillRows> rows,
                                         std::span<SampledToken> drawn) {
  if (before) before('t');
  ++together;
  MR_CHECK(!rows.empty() && rows.size() == drawn.size(), "{} sequences, {} results", rows.size(),
           drawn.size());
  int64_t count = 0;
  std::set<int64_t> seen;
  for (const PrefillRows& of : rows) {
    MR_CHECK(seen.insert(of.slot).second, "slot {} twice", of.slot);
    MR_CHECK(!of.tokens.empty() && of.sampling != nullptr, "slot {} asks for nothing", of.slot);
    count += std::ssize(of.tokens);
  }
  MR_CHECK_LE(count, limits_.max_together, "tokens of one call");
  for (size_t s = 0; s < rows.size(); ++s) drawn[s] = CacheAndDraw(rows[s]);
}

SampledToken CheckingTokenModel::CacheAndDraw(const PrefillRows& rows) {
  const int64_t count = std::ssize(rows.tokens), end = rows.first + count;
  computed += count;
  shared += std::ssize(rows.shared);
  Cache(rows);
  if (rows.sampling == nullptr) return {};
  MR_CHECK(rows.sampling->top <= limits_.top, "top {} of {}", rows.sampling->top, limits_.top);
  slots_[static_cast<size_t>(rows.slot)].drawn = 1;
  return Draw(Read(rows.slot, rows.pages, end), *rows.sampling, 0, limits_.vocab);
}

// Behind a prefix that lies in the pages, token for token, each behind those that the prefix has.
void CheckingTokenModel::Begin(const PrefillRows& rows, Slot& slot) const {
  slot = {0, 0, {rows.pages.begin(), rows.pages.end()}, {}};
  if (rows.shared.empty()) return;
  MR_CHECK(limits_.shares_prefixes && rows.first % limits_.page_tokens == 0 &&
               std::ssize(rows.shared) == rows.first,
           "a prefix of {} tokens ahead of position {}; shared are full pages of {}",
           rows.shared.size(), rows.first, limits_.page_tokens);
  for (const int32_t token : rows.shared) {
    const Cell& cell = cells_[CellOf(rows.pages, slot.length)];
    MR_CHECK(cell.position == slot.length && cell.token == token &&
                 std::ranges::equal(cell.before, rows.shared.first(slot.written.size())),
             "position {} of a shared prefix is not cached: there lies position {}", slot.length,
             cell.position);
    slot.written.push_back(cell.written);
    ++slot.length;
  }
}

void CheckingTokenModel::Cache(const PrefillRows& rows) {
  MR_CHECK(rows.slot >= 0 && rows.slot < limits_.slots, "slot {} of {}", rows.slot, limits_.slots);
  const int64_t count = std::ssize(rows.tokens), end = rows.first + count;
  CheckPages(rows.pages, end);
  Slot& slot = slots_[static_cast<size_t>(rows.slot)];
  if (rows.first == 0 || !rows.shared.empty()) {
    CheckPagesAreFree(rows);
    Begin(rows, slot);
  }
  MR_CHECK_EQ(rows.first, slot.length, "first position and those cached");
  MR_CHECK_EQ(slot.drawn, 0, "tokens drawn before a prompt's end");
  MR_CHECK(std::equal(slot.pages.begin(), slot.pages.end(), rows.pages.begin(), rows.pages.end()),
           "pages of slot {} have changed", rows.slot);
  for (int64_t i = 0; i < count; ++i)
    Write(rows.slot, rows.first + i, rows.pages, rows.tokens[static_cast<size_t>(i)]);
  slot.length = end;
}

const CheckingTokenModel::Row* CheckingTokenModel::InFlight(int64_t slot) const {
  if (!steps_.empty())
    for (const Row& row : steps_.back())
      if (row.slot == slot) return &row;
  return nullptr;
}

// Of a sequence that begins: its slot, and pages of its own, are no row's in flight.
void CheckingTokenModel::CheckPagesAreFree(const PrefillRows& rows) const {
  const auto own =
      rows.pages.subspan(rows.shared.size() / static_cast<size_t>(limits_.page_tokens));
  for (const Step& step : steps_)
    for (const Row& row : step) {
      MR_CHECK(row.slot != rows.slot, "slot {} begins with a row in flight", rows.slot);
      for (const int32_t page : row.pages)
        MR_CHECK(std::ranges::count(own, page) == 0,
                 "page {} of slot {} is one of slot {} in flight", page, rows.slot, row.slot);
    }
}

void CheckingTokenModel::Launch(std::span<const DecodeRow> rows) {
  if (before) before('d');
  ++decodes;
  most_rows = std::max(most_rows, std::ssize(rows));
  MR_CHECK(!rows.empty(), "a step without rows");
  MR_CHECK_LT(std::ssize(steps_), limits_.steps_ahead ? 2 : 1, "steps in flight ahead of one");
  std::set<int64_t> seen;
  Step step;
  for (const DecodeRow& row : rows) {
    MR_CHECK(row.slot >= 0 && row.slot < limits_.slots, "slot {} of {}", row.slot, limits_.slots);
    MR_CHECK(seen.insert(row.slot).second, "slot {} twice", row.slot);
    Slot& slot = slots_[static_cast<size_t>(row.slot)];
    CheckPages(row.pages, row.length + 1);
    MR_CHECK_EQ(row.length, slot.length, "length of slot {}", row.slot);
    MR_CHECK_EQ(row.drawn, slot.drawn, "tokens drawn in slot {}", row.slot);
    MR_CHECK(row.drawn > 0 && row.sampling != nullptr, "slot {} has no first token", row.slot);
    MR_CHECK(std::equal(slot.pages.begin(), slot.pages.end(), row.pages.begin(), row.pages.end()),
             "pages of slot {} have changed", row.slot);
    const Row* const before_it = InFlight(row.slot);
    MR_CHECK((row.token == kTokenInFlight) == (before_it != nullptr),
             "token {} of slot {}, which has {} in flight", row.token, row.slot,
             before_it != nullptr ? "a row" : "no row");
    Write(row.slot, row.length, row.pages,
          before_it != nullptr ? before_it->drawn.token : row.token);
    ++slot.length;
  }
  for (const DecodeRow& row : rows) {  // all are written: none may lie in another's page
    step.push_back(
        {row.slot,
         {row.pages.begin(), row.pages.end()},
         Draw(Read(row.slot, row.pages, row.length + 1), *row.sampling, row.drawn, limits_.vocab)});
    ++slots_[static_cast<size_t>(row.slot)].drawn;
  }
  steps_.push_back(std::move(step));
  most_in_flight = std::max(most_in_flight, std::ssize(steps_));
}

void CheckingTokenModel::Collect(std::span<SampledToken* const> drawn) {
  if (before_collect) before_collect();
  MR_CHECK(!steps_.empty() && steps_.front().size() == drawn.size(),
           "{} steps in flight, {} results", steps_.size(), drawn.size());
  for (size_t r = 0; r < drawn.size(); ++r)
    drawn[r] != nullptr ? void(*drawn[r] = steps_.front()[r].drawn) : void(++unread);
  steps_.pop_front();
}

void CheckingTokenModel::Drop() noexcept {
  for (const Step& step : steps_) unread += std::ssize(step);
  steps_.clear();
}

}  // namespace millrace::test
