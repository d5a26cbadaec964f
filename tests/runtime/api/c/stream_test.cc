// Answers as they come: the tokens of mr_generate, one event each, and callbacks that want no more,
// fail, or call where they may not.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <stdexcept>
#include <utility>

#include "tests/runtime/api/c/answers.h"
#include "tests/runtime/api/c/tokenizer.h"

namespace millrace::test {
namespace {

using Catch::Matchers::Contains;

struct Heard {
  mr_event event;
  std::string text;
  std::vector<int32_t> top_tokens;
  std::vector<float> top_logprobs;
};

// A stream whose callback keeps each event and then does `then`, if anything.
struct Stream {
  using Then = std::function<mr_status*(mr_event*)>;

  explicit Stream(mr_run* run, const std::vector<mr_request>& requests, Then then_do = {},
                  mr_tokenizer* tokenizer = nullptr)
      : then(std::move(then_do)) {
    std::vector<const mr_request*> pointers;
    for (const mr_request& request : requests) pointers.push_back(&request);
    mr_stream_options options = Sized<mr_stream_options>();
    options.user = this;
    options.on_event = OnEvent;
    options.tokenizer = tokenizer;
    outcome = Take(mr_stream(run, pointers.data(), std::ssize(pointers), &options));
  }
  static mr_status* OnEvent(void* user, mr_event* event) {
    Stream& self = *static_cast<Stream*>(user);
    self.heard.push_back({*event,
                          event->text == nullptr
                              ? "none"
                              : std::string(event->text, event->text + event->text_bytes),
                          {event->top_tokens, event->top_tokens + event->top},
                          {event->top_logprobs, event->top_logprobs + event->top}});
    return self.then ? self.then(event) : nullptr;
  }

  // Of one sample, in order.
  std::vector<Heard> Of(int64_t request, int64_t sample) const {
    std::vector<Heard> of;
    for (const Heard& one : heard)
      if (one.event.request == request && one.event.sample == sample) of.push_back(one);
    return of;
  }

  Then then;
  std::vector<Heard> heard;
  Outcome outcome;
};

// 2 samples of one prompt and 1 of another: more than the two slots.
struct Prompts {
  const std::vector<int32_t> one = {5}, three = {3, 30, 14};
  std::vector<mr_request> Requests(float temperature = 0.8f) const {
    mr_request first = RequestOf(one, 6, temperature);
    first.samples = 2;
    return {first, RequestOf(three, 4, temperature)};
  }
};

std::string TwoSlots() { return TinyConfig(R"("inference": {"slots": 2})"); }

TEST_CASE("a stream has the tokens of the answers, each as it comes", "[api][c]") {
  const std::string config = TwoSlots();
  const Linked run(WithInference(config));
  INFO(run.created().message);
  REQUIRE_CODE(mr_init(run), MR_OK);
  const Prompts prompts;
  std::vector<mr_request> requests = prompts.Requests();
  requests[0].top_logprobs = 3;  // beside one without
  const std::vector<Answer> whole = Generate(run, requests);
  requests[1].stop_tokens = &whole[2].tokens[1];
  requests[1].stop_count = 1;
  const std::vector<Answer> answers = Generate(run, requests);
  const Stream stream(run, requests);
  INFO(stream.outcome.message);
  REQUIRE(stream.outcome.code == MR_OK);
  size_t tokens = 0;
  for (const Answer& answer : answers) {
    const std::vector<Heard> of = stream.Of(answer.request, answer.sample);
    REQUIRE(of.size() == answer.tokens.size());
    for (size_t i = 0; i < of.size(); ++i, ++tokens) {
      const mr_event& event = of[i].event;
      REQUIRE(event.size == sizeof(mr_event));
      REQUIRE(event.index == static_cast<int64_t>(i));
      REQUIRE(event.token == answer.tokens[i]);
      REQUIRE(event.logprob == answer.logprobs[i]);
      REQUIRE(event.finish == (i + 1 == of.size() ? answer.finish : MR_FINISH_NOT_YET));
      REQUIRE(event.weight_version == run.Info().weight_version);
      REQUIRE(of[i].text == "none");
      REQUIRE(event.top == answer.top);
      REQUIRE((event.top_tokens == nullptr) == (answer.top == 0));
      const auto at = static_cast<int64_t>(i) * answer.top;
      REQUIRE(std::equal(of[i].top_tokens.begin(), of[i].top_tokens.end(),
                         answer.top_tokens.begin() + at));
      REQUIRE(std::equal(of[i].top_logprobs.begin(), of[i].top_logprobs.end(),
                         answer.top_logprobs.begin() + at));
    }
  }
  REQUIRE(answers[2].finish == MR_FINISH_STOP);
  REQUIRE((answers[1].top == 3 && answers[2].top == 0));
  REQUIRE(tokens == stream.heard.size());
  // The first sample's tokens do not wait for the second one's.
  REQUIRE(stream.heard[1].event.sample + stream.heard[0].event.sample == 1);
  REQUIRE(Stream(run, {}).heard.empty());
}

TEST_CASE("a sample whose callback has enough ends, the others go on", "[api][c]") {
  const std::string config = TwoSlots();
  const Linked run(WithInference(config));
  REQUIRE_CODE(mr_init(run), MR_OK);
  const Prompts prompts;
  const std::vector<Answer> answers = Generate(run, prompts.Requests());
  const Stream stream(run, prompts.Requests(), [](mr_event* event) {
    event->cancel = event->request == 0 && event->sample == 0 && event->index == 2;
    return static_cast<mr_status*>(nullptr);
  });
  REQUIRE(stream.outcome.code == MR_OK);
  const std::vector<Heard> ended = stream.Of(0, 0);
  REQUIRE(ended.size() == 4);
  REQUIRE(ended[3].event.token == -1);
  REQUIRE(ended[3].event.index == 3);
  REQUIRE(ended[3].event.finish == MR_FINISH_CANCELLED);
  for (const auto& [request, sample] : {std::pair{0, 1}, {1, 0}}) {
    const Answer& answer = answers[static_cast<size_t>(request + sample)];
    const std::vector<Heard> of = stream.Of(answer.request, answer.sample);
    REQUIRE(of.size() == answer.tokens.size());
    for (size_t i = 0; i < of.size(); ++i) REQUIRE(of[i].event.token == answer.tokens[i]);
  }
}

TEST_CASE("a stream whose callback fails ends with its status, and the run goes on", "[api][c]") {
  const std::string config = TwoSlots(), without = TinyConfig();
  const Linked run(WithInference(config)), plain(without);
  REQUIRE_CODE(mr_init(run), MR_OK);
  REQUIRE_CODE(mr_init(plain), MR_OK);
  const Prompts prompts;
  const std::vector<Answer> answers = Generate(run, prompts.Requests());
  const auto fails = [&](const Stream::Then& then) {
    Stream stream(run, prompts.Requests(), then);
    REQUIRE(stream.heard.size() == 3);
    return stream.outcome;
  };
  int calls = 0;
  const Outcome own = fails([&](mr_event*) {
    return ++calls % 3 == 0 ? mr_status_new(MR_IO, "the reader has gone") : nullptr;
  });
  REQUIRE(own.code == MR_IO);
  REQUIRE(own.message == "on_event: the reader has gone");
  const Outcome thrown = fails([&](mr_event*) -> mr_status* {
    if (++calls % 3 == 0) throw std::runtime_error("from C++");
    return nullptr;
  });
  REQUIRE(thrown.code == MR_CALLBACK);
  // What was cached of the samples is nobody's: the same answers, and the same training.
  const std::vector<Answer> again = Generate(run, prompts.Requests());
  for (size_t i = 0; i < answers.size(); ++i) REQUIRE(again[i].logprobs == answers[i].logprobs);
  REQUIRE(run.Step(0).second.loss == plain.Step(0).second.loss);
}

TEST_CASE("calls of a run from its own events are refused", "[api][c]") {
  const std::string config = TwoSlots();
  const Linked run(WithInference(config)), other(TinyConfig());
  REQUIRE_CODE(mr_init(run), MR_OK);
  const Prompts prompts;
  Outcome own, another;
  const Stream stream(run, {RequestOf(prompts.one, 1, 0)}, [&](mr_event*) {
    own = run.Step(0).first;
    another = Take(mr_init(other));
    return static_cast<mr_status*>(nullptr);
  });
  REQUIRE(stream.outcome.code == MR_OK);
  REQUIRE(own.code == MR_BUSY);
  REQUIRE(another.code == MR_OK);
}

TEST_CASE("events have text, in whole characters, where a tokenizer is given", "[api][c]") {
  const std::string config =
      R"({"model": {"layers": 1, "d_model": 16, "heads": 2, "seq_len": 64, "vocab": 697},
          "train": {"steps": 5, "micro_batch": 2, "accumulate": 1}})";
  const Linked run(WithInference(config));
  INFO(run.created().message);
  REQUIRE_CODE(mr_init(run), MR_OK);
  const OpenTokenizer tokenizer;
  const std::vector<int32_t> prompt = {5};
  mr_request request = RequestOf(prompt, 60, 1);
  request.samples = 3;
  const std::vector<Answer> answers = Generate(run, {request});
  const Stream stream(run, {request}, {}, tokenizer);
  size_t held_back = 0;
  for (const Answer& answer : answers) {
    std::string text;
    for (const Heard& one : stream.Of(0, answer.sample)) {
      held_back += one.text.empty();
      text += one.text;
    }
    REQUIRE(text == tokenizer.Decode(answer.tokens, 1));
  }
  REQUIRE(held_back > 0);  // of characters of several ids
  mr_request stops = request;
  stops.stop_tokens = &answers[0].tokens[20];
  stops.stop_count = 1;
  stops.samples = 1;
  const std::vector<int32_t> stopped = Generate(run, {stops})[0].tokens;
  std::string text;
  for (const Heard& one : Stream(run, {stops}, {}, tokenizer).heard) text += one.text;
  REQUIRE(text == tokenizer.Decode({stopped.begin(), stopped.end() - 1}, 1));
}

TEST_CASE("the likeliest tokens of a score are those of a greedy answer", "[api][c]") {
  const std::string config = TwoSlots();
  const Linked run(WithInference(config)), plain(config);
  REQUIRE_CODE(mr_init(run), MR_OK);
  REQUIRE_CODE(mr_init(plain), MR_OK);
  for (int64_t step = 0; step < 5; ++step) REQUIRE(run.Step(step).first.code == MR_OK);
  std::vector<int32_t> rows = Tokens(7, 0, kMicro);
  std::vector<Answer> greedy;
  for (int64_t r = 0; r < kMicro; ++r) {
    const std::vector<int32_t> prompt = {static_cast<int32_t>(3 + 11 * r)};
    greedy.push_back(Generate(run, {RequestOf(prompt, kRowTokens - 2, 0)})[0]);
    rows[static_cast<size_t>(r * kRowTokens)] = prompt[0];
    std::copy(greedy.back().tokens.begin(), greedy.back().tokens.end(),
              rows.begin() + r * kRowTokens + 1);
  }
  const mr_batch batch = BatchOf(rows);
  std::vector<double> scores(kMicro * (kRowTokens - 1)), same(scores.size());
  std::vector<int32_t> likeliest(scores.size());
  const int64_t count = std::ssize(scores);
  REQUIRE_CODE(mr_score(run, &batch, same.data(), count), MR_OK);
  REQUIRE_CODE(mr_score_likeliest(run, &batch, scores.data(), likeliest.data(), count), MR_OK);
  REQUIRE(scores == same);
  for (int64_t r = 0; r < kMicro; ++r)
    for (int64_t t = 0; t < kRowTokens - 2; ++t)
      REQUIRE(likeliest[static_cast<size_t>(r * (kRowTokens - 1) + t)] ==
              greedy[static_cast<size_t>(r)].tokens[static_cast<size_t>(t)]);
  REQUIRE_CODE(mr_score_likeliest(run, &batch, scores.data(), nullptr, count), MR_INVALID_ARGUMENT);
  REQUIRE_CODE(mr_score_likeliest(run, &batch, scores.data(), likeliest.data(), count - 1),
               MR_INVALID_ARGUMENT);
  REQUIRE_CODE(mr_score_likeliest(plain, &batch, scores.data(), likeliest.data(), count),
               MR_INVALID_ARGUMENT);
}

TEST_CASE("streams that cannot be are refused by name", "[api][c]") {
  const std::string config = TwoSlots();
  const Linked run(WithInference(config));
  const Prompts prompts;
  REQUIRE_THAT(Stream(run, prompts.Requests()).outcome.message, Contains("no weights yet"));
  REQUIRE_CODE(mr_init(run), MR_OK);
  std::vector<mr_request> requests = prompts.Requests();
  requests[1].max_tokens = 0;
  const Stream refused(run, requests);
  REQUIRE(refused.outcome.code == MR_INVALID_ARGUMENT);
  REQUIRE_THAT(refused.outcome.message, Contains("requests[1]"));
  REQUIRE(refused.heard.empty());
  mr_stream_options options = Sized<mr_stream_options>();
  REQUIRE_THAT(Take(mr_stream(run, nullptr, 0, &options)).message, Contains("on_event is NULL"));
  options.size = 3;
  REQUIRE_THAT(Take(mr_stream(run, nullptr, 0, &options)).message, Contains("options.size is 3"));
  REQUIRE_CODE(mr_stream(run, nullptr, 0, nullptr), MR_INVALID_ARGUMENT);
  REQUIRE_CODE(mr_stream(nullptr, nullptr, 0, &options), MR_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace millrace::test
