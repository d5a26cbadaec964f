// The engine on a thread of its own, above a model that checks what it is asked for.
#include "runtime/serve/serve_engine.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/base/error.h"
#include "tests/runtime/infer/checking_token_model.h"

namespace millrace {
namespace {

using test::CheckingTokenModel;

TokenModelLimits Limits() {
  TokenModelLimits limits;
  limits.slots = 2;
  limits.pages = 100;
  limits.page_tokens = 8;
  limits.shares_prefixes = true;
  limits.max_length = 400;
  limits.max_chunk = limits.max_scored = 16;
  limits.vocab = 97;
  limits.top = 3;
  return limits;
}

// Keeps what it is told, and can be waited for.
class Heard final : public AnswerSink {
 public:
  bool OnEvent(size_t, const GenerationEvent& event) override {
    const std::lock_guard lock(mutex_);
    if (event.token) tokens_.push_back(event.token->token);
    versions_.push_back(event.weight_version);
    changed_.notify_all();
    return true;
  }
  void OnEnd() override { Over(0); }
  void OnError(const ApiError& error) override { Over(error.status); }

  // 0: all was answered; else the error's status.
  int Wait() {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return over_; }));
    return status_;
  }
  void WaitForToken() {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return !tokens_.empty(); }));
  }
  std::vector<int32_t> tokens() {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }
  std::vector<uint64_t> versions() {
    const std::lock_guard lock(mutex_);
    return versions_;
  }
  bool over() {
    const std::lock_guard lock(mutex_);
    return over_;
  }

 private:
  void Over(int status) {
    const std::lock_guard lock(mutex_);
    status_ = status;
    over_ = true;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int32_t> tokens_;
  std::vector<uint64_t> versions_;
  bool over_ = false;
  int status_ = 0;
};

GenerationRequest Request(std::vector<int32_t> prompt, int64_t tokens, int64_t samples = 1) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = tokens;
  request.samples = samples;
  return request;
}

// An engine that runs. `before` is called ahead of each step of the model.
struct Running {
  explicit Running(const ServeEngineOptions& options = {}, WeightSource* weights = nullptr,
                   std::function<void(char)> before = {})
      : model(Limits()), engine(model, 5, weights, options) {
    model.before = std::move(before);
    thread = std::thread([this] {
      try {
        engine.Run();
      } catch (const Error& error) {
        failure = error.what();
      }
    });
  }
  ~Running() { Join(); }
  void Join() {
    engine.Stop();
    if (thread.joinable()) thread.join();
  }
  std::shared_ptr<Heard> Ask(std::vector<GenerationRequest> requests) {
    auto heard = std::make_shared<Heard>();
    auto submitted = engine.Submit(std::move(requests), heard);
    REQUIRE(std::holds_alternative<ServeEngine::JobId>(submitted));
    last = std::get<ServeEngine::JobId>(submitted);
    return heard;
  }
  int StatusOf(std::vector<GenerationRequest> requests) {
    auto submitted = engine.Submit(std::move(requests), std::make_shared<Heard>());
    return std::holds_alternative<ApiError>(submitted) ? std::get<ApiError>(submitted).status : 0;
  }

  CheckingTokenModel model;
  ServeEngine engine;
  std::string failure;
  ServeEngine::JobId last{};
  std::thread thread;
};

// Holds the engine's thread until it is let go.
class Gate {
 public:
  void operator()() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }
  void Open(bool open = true) {
    const std::lock_guard lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

TEST_CASE("many clients each get the answer that a request has alone", "[serve][engine]") {
  Running running;
  std::vector<std::shared_ptr<Heard>> heard;
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 40; ++i) {
    requests.push_back(Request({i, i + 1, i + 2}, 1 + i % 7));
    requests.back().sampling.seed = static_cast<uint64_t>(i);
    heard.push_back(running.Ask({requests.back()}));
  }
  for (size_t i = 0; i < heard.size(); ++i) {
    CAPTURE(i);
    REQUIRE(heard[i]->Wait() == 0);
    std::vector<int32_t> all = requests[i].prompt, expected;
    while (std::ssize(expected) < requests[i].max_tokens) {
      expected.push_back(
          CheckingTokenModel::Draw(all, requests[i].sampling, std::ssize(expected), Limits().vocab)
              .token);
      all.push_back(expected.back());
    }
    REQUIRE(heard[i]->tokens() == expected);
  }
  const auto whole = running.Ask({Request({1}, 2, 3), Request({2}, 4)});
  CHECK(whole->Wait() == 0);
  CHECK(whole->tokens().size() == 10);
  CHECK_THAT(running.engine.figures().PrometheusText(),
             Catch::Contains("millrace_request_success_total{finished_reason=\"length\"} 41\n"));
}

TEST_CASE("figures have the tokens of prompts that samples shared", "[serve][engine]") {
  Running running;
  CHECK(running.Ask({Request(std::vector<int32_t>(20, 5), 3, 4)})->Wait() == 0);
  running.Join();  // with the last step's figures
  CHECK(running.model.computed == 20 + 3 * 4);
  CHECK_THAT(running.engine.figures().PrometheusText(),
             Catch::Contains("\nmillrace_prefix_cache_queries_total 80\n") &&
                 Catch::Contains("\nmillrace_prefix_cache_hits_total 48\n"));
}

TEST_CASE("a full queue refuses, and has room again", "[serve][engine]") {
  Gate gate;
  Running running({.max_queue = 5}, nullptr, [&](char) { gate(); });
  const auto first = running.Ask({Request({1}, 2)});
  // The engine's thread is in its first step, or will be: what comes now waits.
  std::vector<std::shared_ptr<Heard>> waiting;
  int status = 0;
  for (int i = 0; i < 9 && status == 0; ++i) {
    auto heard = std::make_shared<Heard>();
    auto submitted = running.engine.Submit({Request({1, 2}, 1)}, heard);
    if (auto* error = std::get_if<ApiError>(&submitted)) {
      status = error->status;
      CHECK(error->retry_after_s > 0);
      CHECK(error->code == "queue_full");
    } else {
      waiting.push_back(heard);
    }
  }
  CHECK(status == 429);
  CHECK(waiting.size() >= 4);
  CHECK(running.StatusOf({Request({1}, 1, 6)}) == 400);  // never fits
  gate.Open();
  CHECK(first->Wait() == 0);
  for (const auto& heard : waiting) CHECK(heard->Wait() == 0);
  CHECK(running.Ask({Request({1}, 1, 5)})->Wait() == 0);
}

TEST_CASE("a cancelled request frees its place, and its sink hears nothing more",
          "[serve][engine]") {
  Gate gate;
  std::atomic<int> drawn = 0;
  // Once both slots have a few tokens the engine stands still: nobody is done before the cancel.
  Running running({}, nullptr, [&](char call) {
    if (call == 'd' && ++drawn > 3) gate();
  });
  const auto first = running.Ask({Request({1}, 399)});
  const ServeEngine::JobId first_id = running.last;
  const auto second = running.Ask({Request({2}, 399), Request({3}, 399)});
  first->WaitForToken();
  running.engine.Cancel(first_id);
  running.engine.Cancel(first_id);  // once more is no harm
  running.engine.Cancel(running.last);
  gate.Open();
  CHECK(running.Ask({Request({4}, 1, 2)})->Wait() == 0);
  const size_t heard = first->tokens().size();
  CHECK(running.Ask({Request({4}, 20)})->Wait() == 0);
  CHECK(first->tokens().size() == heard);
  CHECK_FALSE(first->over());
  CHECK_FALSE(second->over());
  running.Join();
  CHECK_FALSE(first->over());
}

TEST_CASE("draining answers what has been asked, and nothing else", "[serve][engine]") {
  Gate gate;
  Running running({}, nullptr, [&](char) { gate(); });
  std::vector<std::shared_ptr<Heard>> heard;
  for (int i = 0; i < 6; ++i) heard.push_back(running.Ask({Request({i}, 10)}));
  running.engine.Drain();
  CHECK(running.engine.WhyNotReady() == "draining");
  CHECK(running.StatusOf({Request({1}, 1)}) == 503);
  gate.Open();
  for (const auto& each : heard) CHECK(each->Wait() == 0);
  running.thread.join();  // by itself
  running.thread = std::thread([] {});
}

TEST_CASE("what is not answered when draining ends is refused", "[serve][engine]") {
  Gate gate;
  Running running({.drain_s = 0}, nullptr, [&](char) { gate(); });
  const auto heard = running.Ask({Request({1}, 399)});
  running.engine.Drain();
  gate.Open();
  CHECK(heard->Wait() == 503);
}

TEST_CASE("a request that takes too long is ended", "[serve][engine]") {
  std::atomic<int> steps = 0;
  // Long enough for the answer to begin on a busy machine; the whole one takes four seconds.
  Running running({.request_s = 1}, nullptr, [&](char) {
    ++steps;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  });
  const auto heard = running.Ask({Request({1}, 399)});
  CHECK(heard->Wait() == 400);  // it would take as long once more
  CHECK(steps > 0);
}

// Weights that change once each time they are asked for.
class Weights final : public WeightSource {
 public:
  explicit Weights(uint64_t most) : most_(most) {}
  bool HasOther(uint64_t version) override { return version < most_; }
  uint64_t Load() override { return ++version_; }

 private:
  const uint64_t most_;
  uint64_t version_ = 5;
};

TEST_CASE("an answer is of one version of the weights", "[serve][engine]") {
  Weights weights(60);
  Running running({.max_queue = 1000, .follow_s = 0}, &weights);
  std::vector<std::shared_ptr<Heard>> heard;
  for (int i = 0; i < 200; ++i) heard.push_back(running.Ask({Request({1}, 3), Request({2}, 3, 2)}));
  std::vector<uint64_t> seen;
  for (const auto& each : heard) {
    REQUIRE(each->Wait() == 0);
    const std::vector<uint64_t> versions = each->versions();
    CHECK(versions.size() == 9);
    for (const uint64_t version : versions) REQUIRE(version == versions.front());
    REQUIRE((seen.empty() || versions.front() >= seen.back()));
    seen.push_back(versions.front());
  }
  CHECK(seen.back() > seen.front());
}

// New weights once answers go on.
class WeightsOnceBegun final : public WeightSource {
 public:
  std::atomic<bool> begun = false;
  bool HasOther(uint64_t version) override { return begun && version == 5; }
  uint64_t Load() override { return 6; }
};

TEST_CASE("who waits for a slot while weights change gets the new ones", "[serve][engine]") {
  WeightsOnceBegun weights;
  CheckingTokenModel model(Limits());
  model.before = [&](char call) { weights.begun = weights.begun || call == 'd'; };
  ServeEngine engine(model, 5, &weights, {.follow_s = 0});
  std::vector<std::shared_ptr<Heard>> heard;
  for (int i = 0; i < 5; ++i) {
    heard.push_back(std::make_shared<Heard>());
    engine.Submit({Request({i}, 3)}, heard.back());
  }
  std::thread thread([&] { engine.Run(); });
  for (size_t i = 0; i < heard.size(); ++i) {
    CAPTURE(i);
    CHECK(heard[i]->Wait() == 0);
    CHECK(heard[i]->versions() == std::vector<uint64_t>(3, i < 2 ? 5 : 6));  // there are two slots
  }
  engine.Stop();
  thread.join();
}

TEST_CASE("who waits until tokens can be made is told once they can", "[serve][engine]") {
  CheckingTokenModel model(Limits());
  ServeEngine engine(model, 5, nullptr, {});
  CHECK(engine.WhyNotReady() == "starting");
  std::vector<std::string> seen;
  engine.Run([&] {
    seen.push_back(engine.WhyNotReady());
    engine.Stop();
  });
  CHECK(seen == std::vector<std::string>{""});
}

TEST_CASE("a logit that is not finite ends what has begun, and no more", "[serve][engine]") {
  std::atomic<bool> bad = true;
  Running running({}, nullptr, [&](char call) {
    if (call == 'd' && bad.exchange(false)) throw Error(ErrorCode::kNonFinite, "a logit is NaN");
  });
  const auto first = running.Ask({Request({1}, 5)});
  CHECK(first->Wait() == 500);
  const auto second = running.Ask({Request({1}, 5)});
  CHECK(second->Wait() == 0);
  CHECK(second->tokens().size() == 5);
  CHECK(running.engine.WhyNotReady() == "");
}

TEST_CASE("another failure of the model ends the engine, and everybody hears of it",
          "[serve][engine]") {
  Running running({}, nullptr,
                  [&](char) { throw Error(ErrorCode::kDevice, "the device has gone"); });
  const auto heard = running.Ask({Request({1}, 5)});
  CHECK(heard->Wait() == 500);
  running.thread.join();
  running.thread = std::thread([] {});
  CHECK(running.failure == "the device has gone");
  CHECK(running.StatusOf({Request({1}, 1)}) == 503);
}

}  // namespace
}  // namespace millrace
