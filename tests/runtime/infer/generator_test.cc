#include "runtime/infer/generator.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "runtime/base/error.h"
#include "runtime/infer/generate_all.h"
#include "tests/runtime/infer/ledger.h"

namespace millrace::test {
namespace {

RefusalReason Refused(Generator& generator, const GenerationRequest& request) {
  const auto submitted = generator.Submit(request);
  REQUIRE(std::holds_alternative<Refusal>(submitted));
  CHECK(!std::get<Refusal>(submitted).message.empty());
  return std::get<Refusal>(submitted).reason;
}

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

TEST_CASE("whatever else arrives, waits and leaves, a request's tokens are those it has alone",
          "[infer]") {
  TokenModelLimits limits =
      GENERATE(Limits(1, 4, 16, 40, 64), Limits(3, 9, 4, 30, 5), Limits(8, 40, 1, 24, 1),
               Limits(5, 64, 3, 50, 7), Limits(16, 21, 8, 64, 16));
  const int64_t prefill_tokens = GENERATE(0, 20);
  limits.shares_prefixes = GENERATE(false, true);
  limits.max_together = GENERATE(0, 1, 9, 40);
  limits.steps_ahead = GENERATE(false, true);
  CAPTURE(limits.slots, limits.pages, limits.page_tokens, prefill_tokens, limits.shares_prefixes,
          limits.max_together, limits.steps_ahead);
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
  CHECK(model.most_in_flight == (limits.steps_ahead ? 2 : 1));
  CHECK((model.unread > 0) == limits.steps_ahead);
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
}  // namespace millrace::test
