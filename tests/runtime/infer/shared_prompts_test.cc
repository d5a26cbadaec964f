// Samples of one request share what their prompt's full pages hold.
#include <catch2/catch.hpp>
#include <string>

#include "runtime/base/error.h"
#include "runtime/infer/generator.h"
#include "tests/runtime/infer/ledger.h"

namespace millrace::test {
namespace {

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
  CHECK(generator.load().running == 1);  // the second sample, in the first one's place
  CHECK(generator.Cancel(id, 1) == 1);
  CHECK(generator.load().running == 0);
  CHECK(generator.load().free_pages == 2);
  const bool cancels = GENERATE(false, true);
  if (cancels) {
    CHECK(generator.Cancel(id) == 1);
    CHECK(generator.load().free_pages == 4);
  }
  RunOut(generator, ledger);
  CHECK(generator.load().free_pages == 4);
  CHECK(model.shared == (cancels ? 8 : 2 * 8));
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
  const RequestId id = Accepted(generator, request);
  ledger.Open(id, request);
  Run(generator, ledger, 4);
  CHECK(generator.Cancel(id, 1) == 1);  // which has joined in the first one's place
  REQUIRE(generator.load().running == 0);
  REQUIRE(generator.load().waiting == 2);
  CHECK(generator.load().free_pages == 8);
  generator.SetWeightVersion(7);
  model.Enter();
  CHECK(generator.load().free_pages == 12);
  RunOut(generator, ledger);
  CHECK(model.computed == 17 + 1 + 17 + 1);
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

}  // namespace
}  // namespace millrace::test
