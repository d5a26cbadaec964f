// What tests of a Generator above CheckingTokenModel share: its limits, requests, and a ledger that
// holds events to the answers that requests have by definition.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "runtime/infer/generator.h"
#include "tests/runtime/infer/checking_token_model.h"

namespace millrace::test {

inline TokenModelLimits Limits(int64_t slots, int64_t pages, int64_t page_tokens,
                               int64_t max_length, int64_t max_chunk) {
  TokenModelLimits limits;
  limits.slots = slots;
  limits.pages = pages;
  limits.page_tokens = page_tokens;
  limits.shares_prefixes = true;
  limits.max_length = max_length;
  limits.max_chunk = max_chunk;
  limits.max_scored = std::max<int64_t>(max_chunk - 2, 1);
  limits.vocab = 23;
  limits.top = 3;
  return limits;
}

struct Answer {
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::kLength;
  int64_t stop_length = 0;
};

// By the definition: one sequence alone, nothing cached.
inline Answer Expected(const GenerationRequest& request, int64_t sample, int64_t vocab) {
  Answer answer;
  Sampling sampling = request.sampling;
  sampling.seed = SeedOfSample(sampling.seed, sample);
  std::vector<int32_t> all = request.prompt;
  while (std::ssize(answer.tokens) < request.max_tokens) {
    const int32_t token =
        CheckingTokenModel::Draw(all, sampling, std::ssize(answer.tokens), vocab).token;
    all.push_back(token);
    answer.tokens.push_back(token);
    for (const int32_t stop : request.stop_tokens)
      if (token == stop) answer.stop_length = std::max<int64_t>(answer.stop_length, 1);
    for (const auto& stop : request.stop_sequences)
      if (stop.size() <= answer.tokens.size() &&
          std::vector(answer.tokens.end() - std::ssize(stop), answer.tokens.end()) == stop)
        answer.stop_length = std::max(answer.stop_length, std::ssize(stop));
    if (answer.stop_length == 0) continue;
    answer.finish = FinishReason::kStop;
    break;
  }
  return answer;
}

inline GenerationRequest Request(std::vector<int32_t> prompt, int64_t max_tokens,
                                 uint64_t seed = 1) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.seed = seed;
  return request;
}

inline RequestId Accepted(Generator& generator, const GenerationRequest& request) {
  const auto submitted = generator.Submit(request);
  if (const auto* refusal = std::get_if<Refusal>(&submitted)) FAIL(refusal->message);
  return std::get<RequestId>(submitted);
}

class Chance {
 public:
  explicit Chance(uint64_t seed) : engine_(seed) {}
  int64_t operator()(int64_t from, int64_t to) {  // both included
    return from + static_cast<int64_t>(engine_() % static_cast<uint64_t>(to - from + 1));
  }

 private:
  std::mt19937_64 engine_;
};

// Events of the samples of some requests, held to be in order, and against what is expected.
class Ledger {
 public:
  explicit Ledger(int64_t vocab) : vocab_(vocab) {}
  void Open(RequestId id, const GenerationRequest& request) {
    for (int64_t s = 0; s < request.samples; ++s)
      open_[{id, s}] = {Expected(request, s, vocab_), 0};
  }
  std::vector<GenerationEvent> Take(std::vector<GenerationEvent> events) {
    std::set<std::pair<RequestId, int64_t>> seen;
    for (const GenerationEvent& event : events) {
      const std::pair key{event.request, event.sample};
      REQUIRE(seen.insert(key).second);
      REQUIRE(open_.count(key) == 1);
      auto& [expected, count] = open_.at(key);
      REQUIRE(event.index == count);
      if (event.token) {
        REQUIRE(count < std::ssize(expected.tokens));
        REQUIRE(event.token->token == expected.tokens[static_cast<size_t>(count++)]);
      } else {
        REQUIRE(event.finish == FinishReason::kCancelled);
        open_.erase(key);
        continue;
      }
      const bool last = count == std::ssize(expected.tokens);
      REQUIRE(event.finish.has_value() == last);
      if (!last) continue;
      REQUIRE(*event.finish == expected.finish);
      REQUIRE(event.stop_length == expected.stop_length);
      open_.erase(key);
      ++finished_;
    }
    return events;
  }
  bool empty() const { return open_.empty(); }
  int64_t finished() const { return finished_; }
  std::pair<RequestId, int64_t> any(Chance& chance) const {
    return std::next(open_.begin(), chance(0, std::ssize(open_) - 1))->first;
  }

 private:
  int64_t vocab_, finished_ = 0;
  std::map<std::pair<RequestId, int64_t>, std::pair<Answer, int64_t>> open_;
};

}  // namespace millrace::test
