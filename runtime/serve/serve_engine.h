// The one thread that makes tokens: requests of many clients, in the order of their arrival, above
// a Generator. Other threads submit and cancel.
//
// Queue    A request waits until the generator has room; beyond options.max_queue waiting sequences
//          it is refused (429). Who has waited or run for options.request_s is ended.
// Weights  Change only when no request has begun and not ended, so that all of an answer is of one
//          version. Requests wait meanwhile.
// Faults   A logit that is not finite ends the requests that have begun; whatever else the model
//          throws ends all of them, and leaves Run.
// Threads  Run() by the thread that has the model; everything else by any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/infer/generator.h"
#include "runtime/serve/api_error.h"
#include "runtime/serve/serve_figures.h"

namespace millrace {

// Where the answers to one request go. Calls come from the engine's thread, one at a time; after
// OnEnd or OnError there are none.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  // A token of a sample of prompt `prompt`, or its end. False: that sample need not go on.
  virtual bool OnEvent(size_t prompt, const GenerationEvent& event) = 0;
  virtual void OnEnd() = 0;
  virtual void OnError(const ApiError& error) = 0;
};

// New weights while the server runs. Called by the engine's thread.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // Whether there are others than those of `version`; asked every options.follow_s.
  virtual bool HasOther(uint64_t version) = 0;
  // Makes the newest ones the model's, which has no sequences; their version.
  virtual uint64_t Load() = 0;
};

struct ServeEngineOptions {
  int64_t max_queue = 512;  // sequences that wait
  double request_s = 600, drain_s = 30, follow_s = 2;
};

class ServeEngine {
 public:
  enum class JobId : uint64_t {};

  // `weights` or null: these for ever.
  ServeEngine(TokenModel& model, uint64_t weight_version, WeightSource* weights,
              const ServeEngineOptions& options);
  ~ServeEngine();

  // Until Stop, or until all has been answered after Drain. Whoever is not answered then is
  // refused (503). `ready` is called once, when tokens can be made.
  void Run(const std::function<void()>& ready = {});

  // Each as RefusalOf has nothing against it.
  std::variant<JobId, ApiError> Submit(std::vector<GenerationRequest> requests,
                                       std::shared_ptr<AnswerSink> sink);
  void Cancel(JobId job);  // its sink hears nothing more
  void Drain();            // no new requests; those that wait and run have options.drain_s
  void Stop();             // now

  const TokenModelLimits& limits() const { return limits_; }
  const ServeEngineOptions& options() const { return options_; }
  uint64_t weight_version() const;
  // Why no token can be made now; "": it can.
  std::string WhyNotReady() const;
  ServeFigures& figures() { return figures_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Job;
  struct Place {  // of a generator's request
    std::shared_ptr<Job> job;
    size_t prompt = 0;
    std::vector<Clock::time_point> last = {};  // token, by sample
  };

  bool WaitForWork();
  void TakeCancelled();
  void EndLate();
  void FollowWeights();
  void Feed();
  void Step();
  void Dispatch(const GenerationEvent& event);
  void Finish(const std::shared_ptr<Job>& job, const ApiError* error);
  void Remove(const std::shared_ptr<Job>& job, const char* finished);
  void FailBegun(const ApiError& error);
  void FailAll(const ApiError& error);
  void Renew();
  void CountPrompts();
  void Publish();
  void SetProblem(const std::string& problem);

  TokenModel& model_;
  const TokenModelLimits limits_;
  WeightSource* const weights_;
  const ServeEngineOptions options_;
  ServeFigures figures_;

  // The engine's thread alone.
  std::unique_ptr<Generator> generator_;
  Generator::PromptTokens counted_;             // of its prompts, by the figures
  std::map<JobId, std::shared_ptr<Job>> jobs_;  // by arrival; not ended
  std::deque<std::shared_ptr<Job>> queue_;      // not wholly submitted to the generator
  std::map<RequestId, Place> places_;
  bool change_due_ = false;  // of weights
  Clock::time_point next_look_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // Under mutex_.
  std::deque<std::shared_ptr<Job>> arrived_;
  std::vector<JobId> cancelled_;
  uint64_t next_job_ = 1, version_;
  int64_t queued_ = 0;  // sequences of jobs that no generator has
  bool stop_ = false;
  std::optional<Clock::time_point> drain_until_;
  std::string problem_ = "starting";
};

}  // namespace millrace
