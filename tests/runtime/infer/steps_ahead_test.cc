// A step of decode that is launched before the one before it is read: nobody above the model sees
// it, and the model is held to what it may be told meanwhile.
#include <catch2/catch.hpp>
#include <memory>
#include <string>

#include "runtime/base/error.h"
#include "tests/runtime/infer/ledger.h"

namespace millrace::test {
namespace {

TokenModelLimits AheadLimits(int64_t slots, int64_t pages) {
  TokenModelLimits limits = Limits(slots, pages, 4, 40, 8);
  limits.steps_ahead = true;
  return limits;
}

// L: a step is launched, C: it is collected.
struct Calls {
  explicit Calls(CheckingTokenModel& model) {
    model.before = [this](char call) { made += call == 'd' ? 'L' : call; };
    model.before_collect = [this] { made += 'C'; };
  }
  std::string made;
};

// What each Step returns, until nothing is left.
std::vector<std::string> StepsOf(const TokenModelLimits& limits,
                                 const std::vector<GenerationRequest>& requests) {
  CheckingTokenModel model(limits);
  Generator generator(model);
  std::map<RequestId, size_t> index;
  for (size_t i = 0; i < requests.size(); ++i) index[Accepted(generator, requests[i])] = i;
  std::vector<std::string> steps;
  while (!generator.idle()) {
    std::string& text = steps.emplace_back();
    for (const GenerationEvent& e : generator.Step())
      text += fmt::format("{}.{}:{}={} {} {};", index.at(e.request), e.sample, e.index,
                          e.token->token, e.token->logprob, e.finish.has_value());
  }
  CHECK(generator.load().free_pages == limits.pages);
  return steps;
}

TEST_CASE("the next step is launched before this one is read, unless nobody is in it", "[infer]") {
  CheckingTokenModel model(AheadLimits(2, 20));
  Calls calls(model);
  Generator generator(model);
  Accepted(generator, Request({1, 2}, 6));
  while (!generator.idle()) generator.Step();
  CHECK(calls.made == "pLLCLCLCLCC");  // five tokens behind the prompt's: the last one is known
  CHECK(model.unread == 0);
}

TEST_CASE("of one request each Step returns what it does without a step ahead", "[infer]") {
  std::vector<GenerationRequest> requests;
  for (int32_t i = 0; i < 3; ++i) {
    requests.push_back(Request({i, 5, 7}, 6 + 4 * i, static_cast<uint64_t>(i)));
    requests.back().sampling.top = i;
  }
  const Answer answer = Expected(requests[2], 0, 23);
  for (const size_t stop : {size_t{0}, size_t{1}, size_t{5}, answer.tokens.size() - 1}) {
    CAPTURE(stop);
    requests[2].stop_tokens = {answer.tokens[stop]};
    TokenModelLimits limits = AheadLimits(3, 20);
    limits.max_together = 0;
    const std::vector<std::string> ahead = StepsOf(limits, {requests[2]});
    limits.steps_ahead = false;
    CHECK(StepsOf(limits, {requests[2]}) == ahead);
  }
}

TEST_CASE("a row behind a stop is dropped, and keeps slot and pages until its step is over",
          "[infer]") {
  GenerationRequest stops = Request({1, 2, 3}, 20), goes_on = Request({4, 5}, 30);
  const std::vector<int32_t> all = Expected(stops, 0, 23).tokens;
  size_t at = 1;  // of a token that has not come before
  while (std::count(all.begin(), all.begin() + static_cast<int64_t>(at), all[at]) > 0) ++at;
  stops.stop_tokens = {all[at]};
  const int64_t pages = GENERATE(14, 20);  // 6 and 8 are taken: pages are short, or slots alone
  CheckingTokenModel model(AheadLimits(2, pages));
  Generator generator(model);
  Ledger ledger(23);
  ledger.Open(Accepted(generator, stops), stops);
  ledger.Open(Accepted(generator, goes_on), goes_on);
  GenerationRequest waits = Request({6}, 3);
  ledger.Open(Accepted(generator, waits), waits);
  while (ledger.finished() == 0) ledger.Take(generator.Step());
  // The model itself refuses a sequence in the slot, or the pages, of a row in flight.
  CHECK(generator.load().running == 1);
  CHECK(generator.load().waiting == 1);
  CHECK(generator.load().free_pages == pages - 14);
  CHECK(model.unread == 0);
  ledger.Take(generator.Step());
  CHECK(model.unread == 1);
  CHECK(generator.load().running == 2);
  while (!generator.idle()) ledger.Take(generator.Step());
  CHECK(ledger.empty());
  CHECK(generator.load().free_pages == pages);
}

TEST_CASE("when all have ended no step is in flight: weights may change at once", "[infer]") {
  const bool cancelled = GENERATE(false, true);
  GenerationRequest request = Request({1, 2, 3}, 20);
  if (!cancelled) request.stop_tokens = {Expected(request, 0, 23).tokens[0]};
  CheckingTokenModel model(AheadLimits(2, 20));
  Generator generator(model);
  const RequestId first = Accepted(generator, request), second = Accepted(generator, request);
  for (int i = 0; i < 5; ++i) generator.Step();
  if (cancelled) {
    CHECK(generator.Cancel(first) == 1);
    CHECK(generator.load().free_pages == 8);  // of 20: a row of it is in flight
    CHECK_THROWS_AS(model.Enter(), Error);
    CHECK(generator.Cancel(second) == 1);
    CHECK(model.unread == 2);
  }
  CHECK(generator.load().running == 0);
  CHECK(generator.load().free_pages == 20);
  generator.SetWeightVersion(1);
  model.Enter();
}

TEST_CASE("a cancellation between launch and read says how many tokens were read", "[infer]") {
  CheckingTokenModel model(AheadLimits(2, 20));
  Generator generator(model);
  const GenerationRequest goes_on = Request({9, 8}, 9), goes = Request({1, 2, 3}, 20);
  Ledger ledger(23);
  ledger.Open(Accepted(generator, goes_on), goes_on);
  const RequestId id = Accepted(generator, goes);
  ledger.Open(id, goes);
  for (int i = 0; i < 4; ++i) ledger.Take(generator.Step());
  CHECK(generator.Cancel(id) == 1);
  const std::vector<GenerationEvent> events = ledger.Take(generator.Step());
  REQUIRE(events.size() == 2);
  CHECK(events[0].request == id);
  CHECK(events[0].finish == FinishReason::kCancelled);
  CHECK(!events[0].token);
  while (!generator.idle()) ledger.Take(generator.Step());
  CHECK(ledger.empty());
  CHECK(model.unread == 1);
}

TEST_CASE("an error of a step leaves none in flight behind the generator", "[infer]") {
  CheckingTokenModel model(AheadLimits(2, 20));
  auto generator = std::make_unique<Generator>(model);
  const RequestId id = Accepted(*generator, Request({1, 2}, 9));
  generator->Step();
  const bool at_collect = GENERATE(false, true);
  const auto fail = [] { throw Error(ErrorCode::kDevice, "the device has gone"); };
  if (at_collect)
    model.before_collect = fail;
  else
    model.before = [&](char) { fail(); };
  CHECK_THROWS_WITH(generator->Step(), "the device has gone");
  CHECK(generator->Cancel(id) == 1);
  model.before = nullptr;
  model.before_collect = nullptr;
  generator.reset();
  model.Enter();  // which refuses while a step is in flight
  Generator other(model);
  const GenerationRequest request = Request({3}, 4);
  Ledger ledger(23);
  ledger.Open(Accepted(other, request), request);
  while (!other.idle()) ledger.Take(other.Step());
  CHECK(ledger.empty());
}

TEST_CASE("a generator that goes in the middle leaves no step in flight", "[infer]") {
  CheckingTokenModel model(AheadLimits(2, 20));
  {
    Generator generator(model);
    Accepted(generator, Request({1, 2}, 9));
    for (int i = 0; i < 3; ++i) generator.Step();
    CHECK_THROWS_AS(model.Enter(), Error);
  }
  model.Enter();
}

TEST_CASE("the model of these tests sees a token that is in flight, or is not", "[infer]") {
  CheckingTokenModel model(AheadLimits(2, 20));
  const std::vector<int32_t> tokens = {1, 2}, pages = {3, 4}, others = {5, 4};
  const Sampling sampling;
  const auto row = [&](int64_t length, int32_t token, int64_t drawn) {
    return DecodeRow{0, length, token, drawn, pages, &sampling};
  };
  const auto launch = [&](const DecodeRow& one) { model.Launch({&one, 1}); };
  SampledToken drawn = model.Prefill({0, tokens, 0, pages, &sampling, {}});
  CHECK_THROWS_AS(launch(row(2, kTokenInFlight, 1)), Error);  // nothing is
  launch(row(2, drawn.token, 1));
  CHECK_THROWS_AS(launch(row(3, 7, 2)), Error);
  CHECK_THROWS_AS(model.Prefill({0, tokens, 0, others, &sampling, {}}), Error);  // its slot
  CHECK_THROWS_AS(model.Prefill({1, tokens, 0, others, &sampling, {}}), Error);  // its page
  launch(row(3, kTokenInFlight, 2));
  CHECK_THROWS_AS(launch(row(4, kTokenInFlight, 3)), Error);  // two are in flight
}

}  // namespace
}  // namespace millrace::test
