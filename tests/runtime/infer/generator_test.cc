#include "runtime/infer/generator.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>

#include "runtime/base/error.h"
#include "runtime/infer/generate_all.h"
#include "tests/runtime/infer/checking_token_model.h"

namespace millrace {
namespace {

using test::CheckingTokenModel;

TokenModelLimits Limits(int64_t slots, int64_t pages, int64_t page_tokens, int64_t max_length,
                        int64_t max_chunk) {
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
Answer Expected(const GenerationRequest& request, int64_t sample, int64_t vocab) {
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

GenerationRequest Request(std::vector<int32_t> prompt, int64_t max_tokens, uint64_t seed = 1) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.seed = seed;
  return request;
}

RequestId Accepted(Generator& generator, const GenerationRequest& request) {
  const auto submitted = generator.Submit(request);
  if (const auto* refusal = std::get_if<Refusal>(&submitted)) FAIL(refusal->message);
  return std::get<RequestId>(submitted);
}

RefusalReason Refused(Generator& generator, const GenerationRequest& request) {
  const auto submitted = generator.Submit(request);
  REQUIRE(std::holds_alternative<Refusal>(submitted));
  CHECK(!std::get<Refusal>(submitted).message.empty());
  return std::get<Refusal>(submitted).reason;
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

GenerationRequest RandomRequest(Chance& chance, const TokenModelLimits& limits) {
  GenerationRequest request;
  const int64_t prompt = chance(1, limits.max_length);
  for (int64_t i = 0; i < prompt; ++i)
    request.prompt.push_back(static_cast<int32_t>(chance(0, limits.vocab - 1)));
  request.max_tokens = chance(1, limits.max_length);
  request.samples = chance(1, 4) == 1 ? chance(2, 5) : 1;
  request.score_prompt = chance(1, 8) == 1;
  request.sampling.seed = static_cast<uint64_t>(chance(0, 3));
  request.sampling.top = static_cast<int32_t>(chance(0, limits.top));
  const auto token = [&] { return static_cast<int32_t>(chance(0, limits.vocab - 1)); };
  if (chance(0, 2) == 0) request.stop_tokens = {token()};
  if (chance(0, 2) == 0) request.stop_sequences = {{token(), token()}, {token()}};
  return request;
}

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

TEST_CASE("whatever else arrives, waits and leaves, a request's tokens are those it has alone",
          "[infer]") {
  TokenModelLimits limits =
      GENERATE(Limits(1, 4, 16, 40, 64), Limits(3, 9, 4, 30, 5), Limits(8, 40, 1, 24, 1),
               Limits(5, 64, 3, 50, 7), Limits(16, 21, 8, 64, 16));
  const int64_t prefill_tokens = GENERATE(0, 20);
  limits.shares_prefixes = GENERATE(false, true);
  limits.max_together = GENERATE(0, 1, 9, 40);
  CAPTURE(limits.slots, limits.pages, limits.page_tokens, prefill_tokens, limits.shares_prefixes,
          limits.max_together);
  CheckingTokenModel model(limits);
  Generator generator(model, {.max_waiting = 12, .prefill_tokens = prefill_tokens});
  Ledger ledger(limits.vocab);
  Chance chance(static_cast<uint64_t>(limits.pages * 100 + prefill_tokens));
  int64_t cancelled = 0, refused = 0, scored = 0;
  uint64_t version = 0;
  for (int step = 0; step < 1500 || !generator.idle(); ++step) {
    REQUIRE(step < 10000);
    // Bursts and pauses: the queue runs full and empty.
    for (int64_t n = step < 1500 && step / 100 % 2 == 0 ? chance(0, 2) : 0; n > 0; --n) {
      const GenerationRequest request = RandomRequest(chance, limits);
      const auto submitted = generator.Submit(request);
      if (const auto* id = std::get_if<RequestId>(&submitted))
        ledger.Open(*id, request);
      else
        ++refused;
    }
    if (chance(0, 30) == 0 && !ledger.empty()) {
      const auto [id, sample] = ledger.any(chance);
      cancelled += chance(0, 1) == 0 ? generator.Cancel(id) : generator.Cancel(id, sample);
    }
    if (generator.load().running == 0 && chance(0, 3) == 0) {
      generator.SetWeightVersion(++version);
      model.Enter();
    }
    for (const GenerationEvent& event : ledger.Take(generator.Step()))
      scored += std::ssize(event.prompt);
    const Generator::Load load = generator.load();
    REQUIRE(load.running <= limits.slots);
    REQUIRE(load.waiting <= 12);
  }
  CHECK(ledger.empty());
  CHECK(generator.load().free_pages == limits.pages);
  CHECK(ledger.finished() > 100);
  CHECK(cancelled > 10);
  CHECK(refused > 10);
  CHECK((limits.slots == 1 || model.most_rows > 1));
  CHECK(version > 2);
  CHECK(generator.prompt_tokens().shared == model.shared);
  CHECK(generator.prompt_tokens().computed >= model.computed + scored);
  CHECK((limits.shares_prefixes ? model.shared > 50 : model.shared == 0));
  if (!limits.shares_prefixes || limits.max_together == 0)
    CHECK(model.together == 0);
  else if (limits.max_together >= limits.page_tokens)
    CHECK(model.together > 5);
}

TEST_CASE("a sequence waits until its worst case fits, and nobody overtakes it", "[infer]") {
  CheckingTokenModel model(Limits(4, 6, 4, 24, 24));
  Generator generator(model);
  const RequestId first = Accepted(generator, Request({1, 2, 3}, 10)),  // 12 positions: 3 pages
      large = Accepted(generator, Request({4, 5, 6, 7, 8}, 12)),        // 16: 4 pages
      small = Accepted(generator, Request({9}, 2));                     // 2: 1 page
  std::vector<RequestId> order;
  while (!generator.idle()) {
    for (const GenerationEvent& event : generator.Step())
      if (event.index == 0) order.push_back(event.request);
    const Generator::Load load = generator.load();
    if (order.size() == 1 && load.running == 1) {
      CHECK(load.waiting == 2);
      CHECK(load.free_pages == 3);
    }
  }
  CHECK(order == std::vector{first, large, small});
}

TEST_CASE("what cannot be is refused with its reason", "[infer]") {
  CheckingTokenModel model(Limits(2, 4, 4, 20, 8));
  Generator generator(model, {.max_waiting = 2});
  using enum RefusalReason;
  CHECK(Refused(generator, Request({}, 1)) == kInvalid);
  CHECK(Refused(generator, Request({1}, 0)) == kInvalid);
  CHECK(Refused(generator, Request({1, 23}, 1)) == kVocabulary);
  CHECK(Refused(generator, Request({-1}, 1)) == kVocabulary);
  CHECK(Refused(generator, Request({1}, 20)) == kTooLong);
  CHECK(Refused(generator, Request({1}, INT64_MAX)) == kTooLong);
  CHECK(Refused(generator, Request({1}, 17)) == kTooLong);  // 17 positions of 16
  const auto with = [](auto change) {
    GenerationRequest request = Request({1}, 2);
    change(request);
    return request;
  };
  CHECK(Refused(generator, with([](auto& r) { r.samples = 0; })) == kInvalid);
  CHECK(Refused(generator, with([](auto& r) { r.samples = 3; })) == kInvalid);
  CHECK(Refused(generator, with([](auto& r) { r.sampling.temperature = -1; })) == kInvalid);
  CHECK(Refused(generator, with([](auto& r) { r.sampling.temperature = NAN; })) == kInvalid);
  CHECK(Refused(generator, with([](auto& r) { r.sampling.top_k = -1; })) == kInvalid);
  CHECK(Refused(generator, with([](auto& r) { r.sampling.top_p = 0; })) == kInvalid);
  CHECK(Refused(generator, with([](auto& r) { r.sampling.top_p = 1.01f; })) == kInvalid);
  CHECK(Refused(generator, with([](auto& r) { r.sampling.min_p = NAN; })) == kInvalid);
  CHECK(Refused(generator, with([](auto& r) { r.sampling.top = 4; })) == kInvalid);
  CHECK(Refused(generator, with([](auto& r) { r.stop_tokens = {23}; })) == kVocabulary);
  CHECK(Refused(generator, with([](auto& r) { r.stop_sequences = {{1}, {}}; })) == kInvalid);
  CHECK(Refused(generator, with([](auto& r) { r.stop_sequences = {{1, 40}}; })) == kVocabulary);
  CHECK(generator.idle());
  Accepted(generator, Request({1}, 16));
  Accepted(generator, Request({1}, 1));
  CHECK(Refused(generator, Request({1}, 1)) == kQueueFull);
}

TEST_CASE("a long prompt is cached in pieces, between which others decode", "[infer]") {
  CheckingTokenModel model(Limits(2, 20, 4, 40, 4));
  Generator generator(model);
  std::string calls;
  model.before = [&](char call) { calls += call; };
  Accepted(generator, Request({1, 2}, 12));
  generator.Step();
  Accepted(generator, Request(std::vector<int32_t>(15, 3), 2));
  while (!generator.idle()) generator.Step();
  CHECK(calls.substr(0, 12) == "pdpdpdpdpddd");
}

TEST_CASE("cancelling ends all of a request's samples, or one, and frees what they had",
          "[infer]") {
  CheckingTokenModel model(Limits(2, 8, 4, 32, 4));
  Generator generator(model);
  GenerationRequest request = Request({1, 2, 3, 4, 5, 6}, 8);
  request.samples = 3;
  const RequestId id = Accepted(generator, request);
  generator.Step();  // one is cached in part, one not yet, one waits
  CHECK(generator.Cancel(id, 1) == 1);
  CHECK(generator.Cancel(id, 1) == 0);
  CHECK(generator.Cancel(id, 7) == 0);
  CHECK(generator.Cancel(RequestId{99}) == 0);
  CHECK(!generator.idle());
  std::vector<GenerationEvent> events = generator.Step();
  REQUIRE(!events.empty());
  CHECK(events[0].sample == 1);
  CHECK(events[0].finish == FinishReason::kCancelled);
  CHECK(!events[0].token);
  CHECK(generator.Cancel(id) == 2);
  CHECK(generator.load().free_pages == 8);
  CHECK(generator.load().running + generator.load().waiting == 0);
  CHECK(!generator.idle());
  CHECK(generator.Step().size() == 2);
  CHECK(generator.idle());
}

TEST_CASE("a sample is of one version of the weights", "[infer]") {
  CheckingTokenModel model(Limits(1, 8, 4, 32, 4));
  Generator generator(model);
  generator.SetWeightVersion(7);
  Accepted(generator, Request({1}, 3));
  generator.SetWeightVersion(8);  // it has not begun
  for (const GenerationEvent& event : generator.Step()) CHECK(event.weight_version == 8);
  CHECK_THROWS_AS(generator.SetWeightVersion(9), Error);
  while (!generator.idle())
    for (const GenerationEvent& event : generator.Step()) CHECK(event.weight_version == 8);
  generator.SetWeightVersion(9);
}

TEST_CASE("after the model has failed, a generator does no step more", "[infer]") {
  CheckingTokenModel model(Limits(1, 8, 4, 32, 4));
  Generator generator(model);
  Accepted(generator, Request({1}, 3));
  generator.Step();
  model.before = [](char) { throw Error(ErrorCode::kDevice, "the device has gone"); };
  CHECK_THROWS_WITH(generator.Step(), "the device has gone");
  model.before = nullptr;
  CHECK_THROWS_AS(generator.Step(), Error);
}

TEST_CASE("a list of requests longer than the queue is answered in its order", "[infer]") {
  const TokenModelLimits limits = Limits(3, 9, 4, 30, 5);
  CheckingTokenModel model(limits);
  Generator generator(model, {.max_waiting = 5});
  Chance chance(5);
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 60; ++i) requests.push_back(RandomRequest(chance, limits));
  size_t events = 0;
  const std::vector<GeneratedAnswer> answers =
      GenerateAll(generator, requests, [&](size_t, const GenerationEvent&) { ++events; });
  size_t tokens = 0, refused = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto refusal = RefusalOf(requests[i], limits);
    REQUIRE(refusal.has_value() == answers[i].refusal.has_value());
    refused += refusal.has_value();
    if (refusal) continue;
    REQUIRE(std::ssize(answers[i].samples) == requests[i].samples);
    for (int64_t s = 0; s < requests[i].samples; ++s) {
      const GeneratedSample& sample = answers[i].samples[static_cast<size_t>(s)];
      const Answer expected = Expected(requests[i], s, limits.vocab);
      std::vector<int32_t> ids;
      for (const SampledToken& token : sample.tokens) {
        ids.push_back(token.token);
        CHECK(std::ssize(token.top) == requests[i].sampling.top);
      }
      CHECK(ids == expected.tokens);
      CHECK(sample.finish == expected.finish);
      CHECK(sample.stop_length == expected.stop_length);
      tokens += ids.size();
    }
  }
  CHECK(events == tokens);
  CHECK(refused > 0);
  CHECK(refused < 40);
}

TEST_CASE("of a whole list, steps of decode are full from the first one on", "[infer]") {
  const TokenModelLimits limits = Limits(6, 60, 4, 40, 4);
  const std::vector<GenerationRequest> requests(6, Request(std::vector<int32_t>(7, 3), 10));
  const auto calls = [&](const GeneratorOptions& options) {
    CheckingTokenModel model(limits);
    Generator generator(model, options);
    std::string made;
    model.before = [&](char call) { made += call; };
    GenerateAll(generator, requests);
    return made;
  };
  // Two pieces of each prompt; the last one draws the first token.
  CHECK(calls(PromptsFirst(limits)) == std::string(12, 'p') + std::string(9, 'd'));
  const std::string mixed = calls({});
  CHECK(std::count(mixed.begin(), mixed.end(), 'd') > 9);
}

// A prompt of so many tokens, no two alike.
GenerationRequest Samples(int64_t samples, int64_t prompt, int64_t max_tokens) {
  GenerationRequest request = Request({}, max_tokens);
  for (int64_t i = 0; i < prompt; ++i) request.prompt.push_back(static_cast<int32_t>(i % 23));
  request.samples = samples;
  return request;
}

// So many steps, or until nothing is left; all answers are those that their requests have alone.
// Returns how many first tokens came.
int64_t Run(Generator& generator, Ledger& ledger, int64_t steps) {
  int64_t begun = 0;
  for (; steps > 0 && !generator.idle(); --steps)
    for (const GenerationEvent& event : ledger.Take(generator.Step()))
      begun += event.index == 0 && event.token;
  return begun;
}
int64_t RunOut(Generator& generator, Ledger& ledger) {
  const int64_t begun = Run(generator, ledger, 1000);
  REQUIRE(generator.idle());
  REQUIRE(ledger.empty());
  return begun;
}

// What a generator makes of one request.
struct Outcome {
  int64_t calls, computed, shared;
  bool operator==(const Outcome&) const = default;
};
Outcome OutcomeOf(const TokenModelLimits& limits, const GenerationRequest& request,
                  const GeneratorOptions& options = {}) {
  CheckingTokenModel model(limits);
  Generator generator(model, options);
  Ledger ledger(limits.vocab);
  ledger.Open(Accepted(generator, request), request);
  RunOut(generator, ledger);
  CHECK(generator.load().free_pages == limits.pages);
  CHECK(generator.prompt_tokens().shared == model.shared);
  return {model.prefills + model.together, generator.prompt_tokens().computed, model.shared};
}

TEST_CASE("samples share what a prompt's full pages hold, whenever they begin", "[infer]") {
  TokenModelLimits limits = Limits(8, 80, 4, 60, 6);
  for (const int64_t slots : {1, 2, 8})
    for (const int64_t tokens : {1, 2, 9}) {  // of an answer; the first may end at once
      limits.slots = slots;
      CAPTURE(slots, tokens);
      // 17 tokens in pieces of 6; those behind are one token each.
      CHECK(OutcomeOf(limits, Samples(4, 17, tokens)) == Outcome{3 + 3, 17 + 3 * 1, 3 * 16});
      CHECK(OutcomeOf(limits, Samples(4, 16, tokens)) == Outcome{3 + 3, 16 + 3 * 4, 3 * 12});
      CHECK(OutcomeOf(limits, Samples(4, 5, tokens)) == Outcome{1 + 3, 5 + 3 * 1, 3 * 4});
      CHECK(OutcomeOf(limits, Samples(4, 4, tokens)) == Outcome{4, 16, 0});  // its last draws
      CHECK(OutcomeOf(limits, Samples(1, 17, tokens)) == Outcome{3, 17, 0});
    }
  limits.shares_prefixes = false;
  CHECK(OutcomeOf(limits, Samples(4, 17, 3)) == Outcome{4 * 3, 4 * 17, 0});
  limits.shares_prefixes = true;
  GenerationRequest scored = Samples(4, 17, 3);
  scored.score_prompt = true;  // all but the last token of sample 0 are scored
  CHECK(OutcomeOf(limits, scored) == Outcome{1 + 3 * 3, 4 * 17, 0});
}

TEST_CASE("what is left of samples' prompts goes together", "[infer]") {
  TokenModelLimits limits = Limits(8, 80, 4, 60, 6);
  const GeneratorOptions prompts_first{.prefill_tokens = 1000};
  limits.max_together = 7;
  const auto outcome_of = [&](int64_t samples, int64_t prompt) {
    return OutcomeOf(limits, Samples(samples, prompt, 9), prompts_first);
  };
  CHECK(outcome_of(4, 17) == Outcome{3 + 1, 17 + 3 * 1, 3 * 16});
  CHECK(outcome_of(4, 18) == Outcome{3 + 1, 18 + 3 * 2, 3 * 16});
  CHECK(outcome_of(8, 18) == Outcome{3 + 3, 18 + 7 * 2, 7 * 16});
  CHECK(outcome_of(4, 20) == Outcome{4 + 3, 20 + 3 * 4, 3 * 16});
  limits.max_together = 3;  // a rest of four goes as prompts do
  CHECK(outcome_of(4, 20) == Outcome{4 + 3, 20 + 3 * 4, 3 * 16});
  // Those of several requests, behind the prefixes that come in between.
  limits.max_together = 40;
  CheckingTokenModel model(limits);
  Generator generator(model, prompts_first);
  Ledger ledger(limits.vocab);
  for (const int64_t prompt : {17, 18, 5}) {
    const GenerationRequest request = Samples(2, prompt, 9);
    ledger.Open(Accepted(generator, request), request);
  }
  std::string calls;
  model.before = [&](char call) { calls += call; };
  CHECK(Run(generator, ledger, 1) == 6);
  CHECK(calls == "pppppppt");
  CHECK(model.computed == 17 + 18 + 5 + 1 + 2 + 1);
}

TEST_CASE("a rest waits for no prompt beyond its own step", "[infer]") {
  TokenModelLimits limits = Limits(8, 80, 4, 60, 6);
  limits.max_together = 40;
  CheckingTokenModel model(limits);
  Generator generator(model);  // a piece to a step
  Ledger ledger(limits.vocab);
  const GenerationRequest request = Samples(3, 7, 9), other = Samples(1, 50, 9);
  ledger.Open(Accepted(generator, request), request);
  ledger.Open(Accepted(generator, other), other);
  std::string calls;
  model.before = [&](char call) { calls += call; };
  CHECK(Run(generator, ledger, 3) == 3);
  CHECK(calls == "pptdp");  // 6 tokens; 1, and 3 and 3 of the other samples; a step of theirs
  RunOut(generator, ledger);
}

TEST_CASE("a sample needs no pages for what it shares", "[infer]") {
  CheckingTokenModel model(Limits(8, 7, 4, 28, 28));
  Generator generator(model);
  Ledger ledger(23);
  // 12 positions: 3 pages, 2 of them full of the prompt. Alone, two sequences would fit.
  const GenerationRequest request = Samples(6, 9, 4), other = Samples(1, 2, 2);
  ledger.Open(Accepted(generator, request), request);
  ledger.Open(Accepted(generator, other), other);
  Run(generator, ledger, 1);
  CHECK(generator.load().running == 5);  // 3 and four more
  CHECK(generator.load().waiting == 2);  // the other does not overtake
  CHECK(generator.load().free_pages == 0);
  RunOut(generator, ledger);
  CHECK(generator.load().free_pages == 7);
}

TEST_CASE("a request keeps its prefix while samples wait, and what is behind it waits", "[infer]") {
  CheckingTokenModel model(Limits(1, 4, 4, 16, 16));
  Generator generator(model);
  Ledger ledger(23);
  const GenerationRequest request = Samples(3, 9, 2), large = Samples(1, 9, 7);
  const RequestId id = Accepted(generator, request);
  ledger.Open(id, request);
  ledger.Open(Accepted(generator, large), large);  // all pages there are
  Run(generator, ledger, 1);
  Run(generator, ledger, 1);
  CHECK(generator.load().running == 0);
  CHECK(generator.load().free_pages == 2);
  const bool cancels = GENERATE(false, true);
  if (cancels) {
    CHECK(generator.Cancel(id) == 2);
    CHECK(generator.load().free_pages == 4);
  }
  RunOut(generator, ledger);
  CHECK(generator.load().free_pages == 4);
  CHECK(model.shared == (cancels ? 0 : 2 * 8));
}

TEST_CASE("whoever is cancelled, the others have their prefix", "[infer]") {
  const int64_t steps = GENERATE(0, 1, 2, 3, 5);    // pieces of the first sample's prompt: 3
  const int64_t sample = GENERATE(-1, 0, 1, 2, 3);  // -1: all but the last
  const int64_t slots = GENERATE(1, 2, 4);
  CAPTURE(steps, sample, slots);
  CheckingTokenModel model(Limits(slots, 40, 4, 40, 6));
  Generator generator(model);
  Ledger ledger(23);
  const GenerationRequest request = Samples(4, 17, 20);
  const RequestId id = Accepted(generator, request);
  ledger.Open(id, request);
  int64_t begun = Run(generator, ledger, steps);
  const int64_t cached = generator.prompt_tokens().computed;
  for (const int64_t s : sample < 0 ? std::vector<int64_t>{0, 1, 2} : std::vector<int64_t>{sample})
    CHECK(generator.Cancel(id, s) == 1);
  begun += RunOut(generator, ledger);
  CHECK(generator.load().free_pages == 40);
  CHECK(begun >= (sample < 0 ? 1 : 3));
  // What the first has cached in part is cached anew by the next.
  const bool is_lost = cached < 17 && sample <= 0;
  CHECK(model.computed == (is_lost ? cached : 0) + 17 + (begun - 1));
  CHECK(model.shared == 16 * (begun - 1));
}

TEST_CASE("weights that change leave a sample nothing to share", "[infer]") {
  CheckingTokenModel model(Limits(1, 12, 4, 40, 6));
  Generator generator(model);
  Ledger ledger(23);
  const GenerationRequest request = Samples(4, 17, 2);
  ledger.Open(Accepted(generator, request), request);
  Run(generator, ledger, 4);
  REQUIRE(generator.load().running == 0);
  REQUIRE(generator.load().waiting == 3);
  CHECK(generator.load().free_pages == 8);
  generator.SetWeightVersion(7);
  model.Enter();
  CHECK(generator.load().free_pages == 12);
  RunOut(generator, ledger);
  CHECK(model.computed == 17 + 17 + 2 * 1);
  CHECK(generator.load().free_pages == 12);
}

TEST_CASE("the model of these tests sees a prefix that is not cached, and one that is overwritten",
          "[infer]") {
  CheckingTokenModel model(Limits(3, 9, 2, 8, 8));
  Sampling sampling;
  const std::vector<int32_t> tokens = {5, 6, 7, 8, 9}, others = {5, 6, 7, 7};
  const std::vector<int32_t> own = {0, 1, 2}, shares = {0, 1, 3}, mixed = {4, 1, 5};
  const auto share = [&](const std::vector<int32_t>& prefix, const std::vector<int32_t>& pages) {
    model.Prefill({1, std::span(tokens).subspan(4), 4, pages, &sampling, prefix});
  };
  const std::vector<int32_t> prefix(tokens.begin(), tokens.begin() + 4);
  CHECK_THROWS_WITH(share(prefix, shares), Catch::Matchers::Contains("position 0 of a shared"));
  model.Prefill({0, tokens, 0, own, &sampling});
  CHECK_NOTHROW(share(prefix, shares));
  CHECK_THROWS_WITH(share(others, shares), Catch::Matchers::Contains("position 3 of a shared"));
  CHECK_THROWS_WITH(share(prefix, mixed), Catch::Matchers::Contains("position 0 of a shared"));
  const std::vector<int32_t> same = {2, 2, 7, 8};  // its last two, behind other ones
  model.Prefill({2, same, 0, mixed, nullptr});
  CHECK_THROWS_WITH(share(prefix, shares), Catch::Matchers::Contains("position 2 of a shared"));
  DecodeRow row{0, 5, 1, 1, own, &sampling};
  SampledToken sampled;
  CHECK_THROWS_WITH(model.Decode({&row, 1}, {&sampled, 1}),
                    Catch::Matchers::Contains("position 2 of slot 0"));
}

TEST_CASE("a prompt's own tokens are scored, of the first sample, and nothing else changes",
          "[infer]") {
  CheckingTokenModel model(Limits(3, 60, 4, 40, 6));
  Generator generator(model);
  std::map<RequestId, GenerationRequest> requests;
  for (const size_t length : {1, 2, 5, 17}) {
    GenerationRequest request;
    for (size_t i = 0; i < length; ++i)
      request.prompt.push_back(static_cast<int32_t>((i * 7 + length) % 23));
    request.max_tokens = 3;
    request.samples = 2;
    request.sampling.seed = length;
    request.sampling.top = 2;
    request.score_prompt = true;
    requests[std::get<RequestId>(generator.Submit(request))] = request;
  }
  std::map<std::pair<RequestId, int64_t>, std::vector<int32_t>> answers;
  while (!generator.idle())
    for (const GenerationEvent& event : generator.Step()) {
      const GenerationRequest& request = requests.at(event.request);
      CAPTURE(request.prompt.size(), event.sample, event.index);
      answers[{event.request, event.sample}].push_back(event.token->token);
      const bool scored = event.sample == 0 && event.index == 0;
      REQUIRE(event.prompt.size() == (scored ? request.prompt.size() - 1 : 0));
      for (size_t i = 0; i < event.prompt.size(); ++i) {
        const SampledToken expected = CheckingTokenModel::ScoreOf(
            std::span(request.prompt).first(i + 1), request.prompt[i + 1], 2, 23);
        REQUIRE(event.prompt[i].token == request.prompt[i + 1]);
        REQUIRE(event.prompt[i].logprob == expected.logprob);
        REQUIRE(event.prompt[i].top == expected.top);
      }
    }
  for (const auto& [key, tokens] : answers)
    CHECK(tokens == Expected(requests.at(key.first), key.second, 23).tokens);
  CHECK(answers.size() == 8);
  CHECK(model.scored == 1 + 1 + 4);  // pieces of 4 tokens: of 1, 4 and 16
}

}  // namespace
}  // namespace millrace
