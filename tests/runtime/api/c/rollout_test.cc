// What a program that learns from its own samples needs: answers with log-probabilities, a loss
// that is told of each target, and both of one model.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/runtime/api/c/answers.h"

namespace millrace::test {
namespace {

using Catch::Matchers::Contains;

// The tiny model, with weights of targets and what else is in section train.
std::string Weighted(const std::string& more = "") {
  return R"({"model": {"family": "llama", "layers": 2, "d_model": 20, "heads": 2, "ffn": 28,
             "seq_len": 8, "vocab": 37}, "optimizer": {"lr": 0.01},
             "train": {"steps": 50, "micro_batch": 3, "accumulate": 2, "loss_weights": true)" +
         more + "}}";
}

// Of a step, or what was refused as a loss that is no number.
double LossOf(mr_run* run, const mr_batch& batch) {
  mr_step_result result = Sized<mr_step_result>();
  REQUIRE_CODE(mr_step(run, &batch, &result), MR_OK);
  return result.loss;
}

// A prompt of one token and an answer of seven fill a sequence; a row has one target more, which
// has no weight.
constexpr int64_t kAnswer = kRowTokens - 2;
struct Rollout {
  std::vector<int32_t> rows;
  std::vector<float> weights, logprobs;
  double sum = 0;  // of the log-probabilities

  Rollout(int32_t prompt, const std::vector<Answer>& answers) {
    for (const Answer& answer : answers) {
      rows.push_back(prompt);
      rows.insert(rows.end(), answer.tokens.begin(), answer.tokens.end());
      rows.push_back(static_cast<int32_t>(rows.size()) % kVocab);
      for (const float logprob : answer.logprobs) sum += logprob;
      logprobs.insert(logprobs.end(), answer.logprobs.begin(), answer.logprobs.end());
      logprobs.push_back(-4);
      weights.insert(weights.end(), answer.logprobs.size(), 1);
      weights.push_back(0);
    }
  }
  mr_batch batch() const {
    mr_batch batch = BatchOf(rows);
    batch.weights = weights.data();
    return batch;
  }
};

TEST_CASE("answers carry the log-probabilities that a step finds", "[api][c]") {
  const std::string config = Weighted(), without = TinyConfig();
  const Linked run(WithInference(config)), plain(without);
  INFO(run.created().message);
  REQUIRE_CODE(mr_init(run), MR_OK);
  REQUIRE_CODE(mr_init(plain), MR_OK);
  const std::vector<float> ones(kRows * (kRowTokens - 1), 1);
  const auto step = [&](int64_t number) {
    const std::vector<int32_t> tokens = Tokens(number);
    mr_batch batch = BatchOf(tokens);
    batch.weights = ones.data();
    return LossOf(run, batch);
  };
  for (int64_t i = 0; i < 3; ++i) {
    const mr_step_result other = plain.Step(i).second;
    REQUIRE(step(i) == other.loss);
    REQUIRE((std::isnan(other.ratio) && std::isnan(other.kl) && std::isnan(other.clip_fraction)));
  }
  const std::vector<int32_t> prompt = {5};
  mr_request request = RequestOf(prompt, kAnswer, 0.8f);
  request.samples = kRows;
  const std::vector<Answer> answers = Generate(run, {request});
  REQUIRE(answers.size() == kRows);
  for (size_t i = 0; i < answers.size(); ++i) {
    REQUIRE(answers[i].sample == static_cast<int64_t>(i));
    REQUIRE(answers[i].finish == MR_FINISH_LENGTH);
    REQUIRE(answers[i].version == run.Info().weight_version);
  }
  REQUIRE(answers[0].tokens != answers[1].tokens);
  // The same request, the same answers; and training goes on as if nothing had been.
  REQUIRE(Generate(run, {request})[2].tokens == answers[2].tokens);
  REQUIRE(step(3) == plain.Step(3).second.loss);
  const Rollout rollout(5, Generate(run, {request}));
  std::vector<double> scores(rollout.logprobs.size());
  mr_batch scored = BatchOf(rollout.rows);
  REQUIRE_CODE(mr_score(run, &scored, scores.data(), std::ssize(scores)), MR_OK);
  for (size_t i = 0; i < scores.size(); ++i)
    if (rollout.weights[i] != 0)  // so a policy gradient begins at a ratio of exactly 1
      REQUIRE(static_cast<float>(scores[i]) == rollout.logprobs[i]);
  REQUIRE_CODE(mr_score(run, &scored, scores.data(), 3), MR_INVALID_ARGUMENT);
  REQUIRE_CODE(mr_score(run, nullptr, scores.data(), 3), MR_INVALID_ARGUMENT);
  REQUIRE_CODE(mr_score(plain, &scored, scores.data(), std::ssize(scores)), MR_INVALID_ARGUMENT);
  REQUIRE(rollout.logprobs[0] != answers[0].logprobs[0]);  // of other weights
  REQUIRE(LossOf(run, rollout.batch()) == Approx(-rollout.sum / (kRows * kAnswer)).epsilon(1e-6));
}

TEST_CASE("the likeliest tokens stand in each token's place with what scores find", "[api][c]") {
  const std::string config = TinyConfig();
  const Linked run(WithInference(config));
  REQUIRE_CODE(mr_init(run), MR_OK);
  const std::vector<int32_t> prompt = {5};
  const auto answer_of = [&](int64_t top, float temperature) {
    mr_request request = RequestOf(prompt, kAnswer, temperature);
    request.top_logprobs = top;
    return Generate(run, {request, RequestOf(prompt, 2, temperature)})[0];
  };
  const auto at = [](const auto& of, int64_t t, int64_t k, int64_t top) {
    return of[static_cast<size_t>(t * top + k)];
  };
  for (const float temperature : {0.0f, 0.8f}) {
    const Answer plain = answer_of(0, temperature), four = answer_of(4, temperature),
                 all = answer_of(kVocab, temperature);
    REQUIRE((plain.top == 0 && plain.top_tokens.empty() && four.top == 4 && all.top == kVocab));
    for (const Answer* other : {&four, &all}) {  // who asks changes nothing
      REQUIRE(other->tokens == plain.tokens);
      REQUIRE(other->logprobs == plain.logprobs);
    }
    for (int64_t t = 0; t < kAnswer; ++t) {
      const int32_t chosen = all.tokens[static_cast<size_t>(t)];
      const float logprob = all.logprobs[static_cast<size_t>(t)];
      double sum = 0;
      int64_t found = 0;
      for (int64_t k = 0; k < kVocab; ++k) {
        const int32_t token = at(all.top_tokens, t, k, kVocab);
        const float of_token = at(all.top_logprobs, t, k, kVocab);
        sum += std::exp(of_token);
        if (token == chosen) REQUIRE((++found == 1 && of_token == logprob));
        if (k > 0) {
          const float before = at(all.top_logprobs, t, k - 1, kVocab);
          REQUIRE(before >= of_token);
        }
        if (k >= 4) continue;
        REQUIRE(at(four.top_tokens, t, k, 4) == token);
        REQUIRE(at(four.top_logprobs, t, k, 4) == of_token);
      }
      REQUIRE(found == 1);
      REQUIRE(sum == Approx(1).epsilon(1e-5));
      if (temperature == 0) REQUIRE(at(four.top_tokens, t, 0, 4) == chosen);
      if (temperature == 0) REQUIRE(at(four.top_logprobs, t, 0, 4) == logprob);
      // In the place of the token, the training forward gives each its bits.
      std::vector<int32_t> rows;
      for (int64_t k = 0; k < kMicro; ++k) {
        rows.push_back(prompt[0]);
        rows.insert(rows.end(), all.tokens.begin(), all.tokens.begin() + t);
        rows.push_back(at(four.top_tokens, t, k, 4));
        rows.resize(static_cast<size_t>((k + 1) * kRowTokens), 0);
      }
      std::vector<double> scores(static_cast<size_t>(kMicro * (kRowTokens - 1)));
      const mr_batch batch = BatchOf(rows);
      REQUIRE_CODE(mr_score(run, &batch, scores.data(), std::ssize(scores)), MR_OK);
      for (int64_t k = 0; k < kMicro; ++k)
        REQUIRE(static_cast<float>(at(scores, k, t, kRowTokens - 1)) ==
                at(four.top_logprobs, t, k, 4));
    }
  }
  const Answer before = answer_of(4, 0);
  REQUIRE(run.Step(0).first.code == MR_OK);
  REQUIRE(answer_of(4, 0).top_logprobs != before.top_logprobs);  // of other weights
}

TEST_CASE("requests are batched, in order, and end where they are asked to", "[api][c]") {
  const std::string config = TinyConfig();
  const Linked run(WithInference(config));
  REQUIRE_CODE(mr_init(run), MR_OK);
  const std::vector<int32_t> one = {3}, three = {3, 30, 14};
  const std::vector<Answer> apart = {Generate(run, {RequestOf(one, 6, 0)})[0],
                                     Generate(run, {RequestOf(three, 4, 0)})[0]};
  const std::vector<Answer> together =
      Generate(run, {RequestOf(one, 6, 0), RequestOf(three, 4, 0)});
  for (size_t i = 0; i < 2; ++i) {
    REQUIRE(together[i].request == static_cast<int64_t>(i));
    REQUIRE(together[i].tokens == apart[i].tokens);
    REQUIRE(together[i].logprobs == apart[i].logprobs);
  }
  mr_request stops = RequestOf(one, 6, 0);
  stops.stop_tokens = &apart[0].tokens[0];
  stops.stop_count = 1;
  const Answer stopped = Generate(run, {stops})[0];
  REQUIRE(stopped.tokens == std::vector<int32_t>{apart[0].tokens[0]});
  REQUIRE(stopped.finish == MR_FINISH_STOP);
  REQUIRE(Generate(run, {}).empty());
}

TEST_CASE("requests that cannot be are refused by name", "[api][c]") {
  const std::string config = TinyConfig();
  const Linked run(WithInference(config)), plain(config);
  const std::vector<int32_t> prompt = {1, 2}, strange = {1, 37};
  const auto refused = [&](mr_run* of, mr_request request, const std::string& words) {
    Outcome outcome;
    REQUIRE(Generate(of, {RequestOf(prompt, 1, 0), request}, &outcome).empty());
    CAPTURE(outcome.message);
    REQUIRE(outcome.code == MR_INVALID_ARGUMENT);
    REQUIRE_THAT(outcome.message, Contains(words));
  };
  refused(run, RequestOf(prompt, 1, 0), "no weights yet");
  REQUIRE_CODE(mr_init(run), MR_OK);
  REQUIRE_CODE(mr_init(plain), MR_OK);
  refused(plain, RequestOf(prompt, 1, 0), "use_inference");
  refused(run, RequestOf(strange, 1, 0), "requests[1]: ");
  refused(run, RequestOf(prompt, 8, 0), "requests[1]: ");  // nine positions of eight
  refused(run, RequestOf(prompt, 0, 0), "requests[1]: ");
  refused(run, RequestOf(prompt, 1, -1), "requests[1]: ");
  refused(run, RequestOf({}, 1, 0), "requests[1]: ");
  mr_request request = RequestOf(prompt, 1, 0);
  request.prompt = nullptr;
  refused(run, request, "requests[1].prompt is NULL");
  request = RequestOf(prompt, 1, 0);
  request.stop_count = -1;
  refused(run, request, "requests[1].stop_tokens");
  request = RequestOf(prompt, 1, 0);
  request.size = 4;
  refused(run, request, "requests[1].size is 4");
  request = RequestOf(prompt, 1, 0);
  request.samples = -1;
  refused(run, request, "requests[1]: ");
  request.samples = 1025;
  refused(run, request, "requests[1].samples is 1025; at most 1024 ");
  request.samples = 1;
  for (const int64_t top : {int64_t{-1}, kVocab + 1, int64_t{1} << 32}) {
    request.top_logprobs = top;
    refused(run, request,
            "requests[1].top_logprobs is " + std::to_string(top) + "; allowed is 0 to 37");
  }
  request.top_logprobs = 0;
  request.samples = 1024;
  REQUIRE(Generate(run, {request}).size() == 1024);
  mr_answers* answers = nullptr;
  REQUIRE_CODE(mr_generate(run, nullptr, 1, &answers), MR_INVALID_ARGUMENT);
  REQUIRE_CODE(mr_generate(run, nullptr, 0, nullptr), MR_INVALID_ARGUMENT);
}

TEST_CASE("weights mask and weigh targets", "[api][c]") {
  const std::string config = Weighted();
  const auto loss = [&](const std::vector<int32_t>& tokens, const std::vector<float>& weights) {
    const Linked run(config);
    REQUIRE_CODE(mr_init(run), MR_OK);
    mr_batch batch = BatchOf(tokens);
    batch.weights = weights.data();
    return LossOf(run, batch);
  };
  const Linked plain(TinyConfig());
  REQUIRE_CODE(mr_init(plain), MR_OK);
  const std::vector<int32_t> tokens = Tokens(0);
  std::vector<float> weights(kRows * (kRowTokens - 1), 1);
  REQUIRE(loss(tokens, weights) == plain.Step(0).second.loss);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 3);
  // The last target of a row is no input: with weight 0 it may be any.
  weights[7] = 0;
  std::vector<int32_t> other = tokens;
  other[8] = (other[8] + 5) % kVocab;
  const double masked = loss(tokens, weights);
  REQUIRE(loss(other, weights) == masked);
  weights[7] = 2;
  REQUIRE(loss(other, weights) != loss(tokens, weights));

  const Linked run(config);
  REQUIRE_CODE(mr_init(run), MR_OK);
  REQUIRE_THAT(run.Step(0).first.message,
               Contains("batch.weights is NULL, and train.loss_weights"));
  mr_batch batch = BatchOf(tokens);
  for (const float wrong : {-1.0f, INFINITY, NAN}) {
    weights[9] = wrong;
    batch.weights = weights.data();
    REQUIRE_THAT(Take(mr_step(run, &batch, nullptr)).message, Contains("batch.weights[1][1] is"));
  }
  std::fill(weights.begin(), weights.end(), 0);
  REQUIRE_THAT(Take(mr_step(run, &batch, nullptr)).message, Contains("all 0"));
  batch.weights = nullptr;
  mr_evaluation evaluation = Sized<mr_evaluation>();
  REQUIRE_CODE(mr_evaluate(run, &batch, &evaluation), MR_OK);
  mr_evaluation same = Sized<mr_evaluation>();
  const Linked unweighted(TinyConfig());
  REQUIRE_CODE(mr_init(unweighted), MR_OK);
  REQUIRE_CODE(mr_evaluate(unweighted, &batch, &same), MR_OK);
  REQUIRE(evaluation.loss == same.loss);
}

TEST_CASE("blocks that predict further weigh their own targets", "[api][c]") {
  const auto config = [](bool weights) {
    return std::string(R"({"model": {"family": "qwen3", "layers": 1, "d_model": 20, "heads": 2,
             "head_dim": 10, "ffn": 28, "seq_len": 8, "vocab": 37, "mtp": {"depth": 2}},
             "train": {"steps": 50, "micro_batch": 3, "accumulate": 2, "loss_weights": )") +
           (weights ? "true" : "false") + "}}";
  };
  const std::vector<int32_t> tokens = Tokens(0);
  const auto loss = [&](const std::vector<float>& weights) {
    const Linked run(config(!weights.empty()));
    INFO(run.created().message);
    REQUIRE_CODE(mr_init(run), MR_OK);
    mr_batch batch = BatchOf(tokens);
    if (!weights.empty()) batch.weights = weights.data();
    return LossOf(run, batch);
  };
  std::vector<float> weights(kRows * (kRowTokens - 1), 0.5f);
  const double plain = loss({});
  REQUIRE(loss(weights) == plain);
  // A row's first targets weigh eight times the others; depth 1 has one of them, depth 2 none. No
  // mean depends on what all weights are multiplied by.
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = i % (kRowTokens - 1) < 2 ? 4.0f : 0.5f;
  const double uneven = loss(weights);
  REQUIRE(uneven != plain);
  for (float& weight : weights) weight *= 8;
  REQUIRE(loss(weights) == uneven);
}

TEST_CASE("a policy gradient of own samples begins at a ratio of 1", "[api][c]") {
  const std::string config = Weighted(R"(, "loss": "policy_gradient")");
  const Linked run(WithInference(config));
  INFO(run.created().message);
  REQUIRE_CODE(mr_init(run), MR_OK);
  const std::vector<int32_t> prompt = {5};
  mr_request request = RequestOf(prompt, kAnswer, 1);
  request.samples = kRows;
  Rollout rollout(5, Generate(run, {request}));
  std::vector<float> advantages;
  double mean = 0;
  for (size_t i = 0; i < rollout.weights.size(); ++i) {
    advantages.push_back(static_cast<float>(i % 11) - 3.25f);
    mean += advantages.back() * rollout.weights[i] / (kRows * kAnswer);
  }
  const auto step = [&] {
    REQUIRE_CODE(mr_init(run), MR_OK);
    mr_batch batch = rollout.batch();
    batch.old_logprobs = rollout.logprobs.data();
    batch.advantages = advantages.data();
    mr_step_result result = Sized<mr_step_result>();
    REQUIRE_CODE(mr_step(run, &batch, &result), MR_OK);
    return result;
  };
  const mr_step_result at_one = step();
  REQUIRE(at_one.loss == Approx(-mean).epsilon(1e-6));
  REQUIRE((at_one.ratio == 1 && at_one.clip_fraction == 0 && at_one.kl == 0));
  // Of 1 of the targets the old probability is e^0.5 of what it was, with an advantage below 0: its
  // ratio, e^-0.5, is below 0.8 and clipped.
  const size_t other = 11;  // of the second answer
  REQUIRE((rollout.weights[other] != 0 && advantages[other] < 0));
  rollout.logprobs[other] += 0.5f;
  const mr_step_result moved = step();
  REQUIRE(moved.loss != at_one.loss);
  const double targets = kRows * kAnswer, ratio = std::exp(-0.5);
  REQUIRE(moved.clip_fraction == Approx(1 / targets).epsilon(1e-6));
  REQUIRE(moved.ratio == Approx(1 - (1 - ratio) / targets).epsilon(1e-6));
  REQUIRE(moved.kl == Approx((ratio - 1 + 0.5) / targets).epsilon(1e-5));
  const mr_batch batch = rollout.batch();
  REQUIRE_THAT(Take(mr_step(run, &batch, nullptr)).message,
               Contains("is NULL, and train.loss is policy_gradient"));
}

}  // namespace
}  // namespace millrace::test
