#include "runtime/serve/serve_engine.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr int64_t kNoLimit = int64_t{1} << 40;  // the queue here has one
constexpr std::chrono::milliseconds kTick(100);

ApiError Unavailable(const std::string& message, const char* code) {
  return {.status = 503, .message = message, .param = "", .code = code, .retry_after_s = 1};
}

std::chrono::steady_clock::duration Seconds(double s) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(s));
}

}  // namespace

struct ServeEngine::Job {
  JobId id{};
  std::vector<GenerationRequest> requests;
  std::shared_ptr<AnswerSink> sink;
  size_t next = 0;    // that the generator has not got
  int64_t open = 0;   // samples that it has, and that have not ended
  bool over = false;  // its sink hears nothing more
  Clock::time_point arrived;
  std::optional<Clock::time_point> begun, first, last;
  int64_t prompt_tokens = 0, tokens = 0;
  bool cut = false;  // an answer has ended by its length

  int64_t SequencesLeft() const {
    int64_t count = 0;
    for (size_t i = next; i < requests.size(); ++i) count += requests[i].samples;
    return count;
  }
};

ServeEngine::ServeEngine(TokenModel& model, uint64_t weight_version, WeightSource* weights,
                         const ServeEngineOptions& options)
    : model_(model),
      limits_(model.limits()),
      weights_(weights),
      options_(options),
      next_look_(Clock::now() + Seconds(options.follow_s)),
      version_(weight_version) {
  Renew();
}

ServeEngine::~ServeEngine() = default;

// A generator whose model has thrown is of no further use.
void ServeEngine::Renew() {
  if (generator_) CountPrompts();
  counted_ = {};
  generator_ = std::make_unique<Generator>(model_, GeneratorOptions{.max_waiting = kNoLimit});
  generator_->SetWeightVersion(weight_version());
}

void ServeEngine::CountPrompts() {
  const Generator::PromptTokens now = generator_->prompt_tokens();
  figures_.AddPrompts({now.computed - counted_.computed, now.shared - counted_.shared});
  counted_ = now;
}

std::variant<ServeEngine::JobId, ApiError> ServeEngine::Submit(
    std::vector<GenerationRequest> requests, std::shared_ptr<AnswerSink> sink) {
  auto job = std::make_shared<Job>();
  job->requests = std::move(requests);
  job->sink = std::move(sink);
  job->arrived = Clock::now();
  for (const GenerationRequest& request : job->requests)
    job->prompt_tokens += std::ssize(request.prompt);
  const int64_t sequences = job->SequencesLeft();
  const std::lock_guard lock(mutex_);
  if (stop_ || drain_until_) return Unavailable("the server is draining", "draining");
  if (sequences > options_.max_queue)
    return ApiError{.status = 400,
                    .message = fmt::format("the request has {} answers; allowed are {}", sequences,
                                           options_.max_queue),
                    .param = "n"};
  if (sequences > options_.max_queue - queued_)
    return ApiError{.status = 429,
                    .message = fmt::format("{} answers wait already, and {} more are above the {} "
                                           "that may",
                                           queued_, sequences, options_.max_queue),
                    .code = "queue_full",
                    .retry_after_s = 1};
  queued_ += sequences;
  job->id = JobId{next_job_++};
  arrived_.push_back(job);
  wake_.notify_one();
  return job->id;
}

void ServeEngine::Cancel(JobId job) {
  const std::lock_guard lock(mutex_);
  cancelled_.push_back(job);
  wake_.notify_one();
}

void ServeEngine::Drain() {
  const std::lock_guard lock(mutex_);
  if (!drain_until_) drain_until_ = Clock::now() + Seconds(options_.drain_s);
  problem_ = "draining";
  wake_.notify_one();
}

void ServeEngine::Stop() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  problem_ = "draining";
  wake_.notify_one();
}

uint64_t ServeEngine::weight_version() const {
  const std::lock_guard lock(mutex_);
  return version_;
}

std::string ServeEngine::WhyNotReady() const {
  const std::lock_guard lock(mutex_);
  return problem_;
}

void ServeEngine::SetProblem(const std::string& problem) {
  const std::lock_guard lock(mutex_);
  if (!drain_until_ && !stop_) problem_ = problem;
}

void ServeEngine::Run(const std::function<void()>& ready) {
  try {
    SetProblem("");
    if (ready) ready();
    while (WaitForWork()) {
      TakeCancelled();
      EndLate();
      FollowWeights();
      Feed();
      if (!generator_->idle()) Step();
      Publish();
    }
  } catch (...) {
    Stop();
    FailAll({.status = 500, .message = "the model has failed", .code = "model_failed"});
    throw;
  }
  Stop();
  FailAll(Unavailable("the server is going away", "draining"));
}

// False: there is nothing more to do.
bool ServeEngine::WaitForWork() {
  std::unique_lock lock(mutex_);
  const auto has_work = [&] {
    return stop_ || !arrived_.empty() || !cancelled_.empty() || !generator_->idle() ||
           !queue_.empty() || change_due_;
  };
  if (!has_work() && !(drain_until_ && jobs_.empty())) wake_.wait_for(lock, kTick, has_work);
  for (const std::shared_ptr<Job>& job : arrived_) {
    jobs_[job->id] = job;
    queue_.push_back(job);
  }
  arrived_.clear();
  if (stop_) return false;
  return !drain_until_ || (!jobs_.empty() && Clock::now() < *drain_until_);
}

void ServeEngine::TakeCancelled() {
  std::vector<JobId> cancelled;
  {
    const std::lock_guard lock(mutex_);
    cancelled.swap(cancelled_);
  }
  for (const JobId id : cancelled)
    if (const auto found = jobs_.find(id); found != jobs_.end()) {
      const std::shared_ptr<Job> job = found->second;
      Remove(job, "abort");
    }
}

// Jobs are in the order of their arrival.
void ServeEngine::EndLate() {
  const auto late = Clock::now() - Seconds(options_.request_s);
  while (!jobs_.empty() && jobs_.begin()->second->arrived < late) {
    const std::shared_ptr<Job> job = jobs_.begin()->second;
    ApiError error = Unavailable(
        fmt::format("the request has waited for {} s, the limit", options_.request_s), "timeout");
    if (job->begun)  // it would take as long the next time
      error = {.status = 400,
               .message = fmt::format("the answer has taken longer than the limit, {} s; ask for "
                                      "fewer tokens",
                                      options_.request_s),
               .param = "max_tokens",
               .code = "timeout"};
    Finish(job, &error);
  }
}

void ServeEngine::FollowWeights() {
  if (weights_ == nullptr) return;
  if (!change_due_ && Clock::now() >= next_look_) {
    change_due_ = weights_->HasOther(weight_version());
    next_look_ = Clock::now() + Seconds(options_.follow_s);
  }
  const bool begun = std::any_of(jobs_.begin(), jobs_.end(),
                                 [](const auto& entry) { return entry.second->next > 0; });
  if (!change_due_ || begun || !generator_->idle()) return;
  SetProblem("loading weights");
  const uint64_t version = weights_->Load();
  {
    const std::lock_guard lock(mutex_);
    version_ = version;
  }
  Renew();
  change_due_ = false;
  SetProblem("");
}

// Of the queue the generator gets what has a slot: what waits is still ours to count and to cancel.
// While weights are to change, only what has begun goes on.
void ServeEngine::Feed() {
  const auto has_slot = [&] {
    const Generator::Load load = generator_->load();
    return load.waiting + load.running < limits_.slots;
  };
  while (!queue_.empty() && has_slot()) {
    const std::shared_ptr<Job> job = queue_.front();
    if (change_due_ && job->next == 0) return;
    const GenerationRequest& request = job->requests[job->next];
    const int64_t samples = request.samples;
    const size_t prompt = job->next++;
    if (job->next == job->requests.size()) queue_.pop_front();
    {
      const std::lock_guard lock(mutex_);
      queued_ -= samples;
    }
    if (!job->begun) job->begun = Clock::now();
    const auto submitted = generator_->Submit(request);
    if (const auto* refusal = std::get_if<Refusal>(&submitted)) {
      const ApiError error{.status = 400, .message = refusal->message};
      Finish(job, &error);
      continue;
    }
    places_[std::get<RequestId>(submitted)] = {
        job, prompt, std::vector<Clock::time_point>(static_cast<size_t>(samples))};
    job->open += samples;
  }
}

void ServeEngine::Step() {
  try {
    for (const GenerationEvent& event : generator_->Step()) {
      Dispatch(event);
      if (event.token && WhyNotReady() != "") SetProblem("");
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNonFinite) throw;
    SetProblem(error.what());
    FailBegun({.status = 500, .message = error.what(), .code = "not_finite"});
    Renew();
  }
}

void ServeEngine::Dispatch(const GenerationEvent& event) {
  const auto found = places_.find(event.request);
  if (found == places_.end()) return;  // of a job that is over
  const std::shared_ptr<Job> job = found->second.job;
  const auto now = Clock::now();
  if (event.token) {
    ++job->tokens;
    Clock::time_point& last = found->second.last[static_cast<size_t>(event.sample)];
    if (event.index > 0) figures_.AddTokenGap(std::chrono::duration<double>(now - last).count());
    last = now;
    if (!job->first) job->first = now;
    job->last = now;
  }
  job->cut |= event.finish == FinishReason::kLength;
  const bool goes_on = job->sink->OnEvent(found->second.prompt, event);
  if (!goes_on && !event.finish) generator_->Cancel(event.request, event.sample);
  if (!event.finish || --job->open > 0 || job->next < job->requests.size()) return;
  Finish(job, nullptr);
}

void ServeEngine::Finish(const std::shared_ptr<Job>& job, const ApiError* error) {
  if (job->over) return;
  const char* const finished = error != nullptr ? "error" : job->cut ? "length" : "stop";
  Remove(job, finished);
  error != nullptr ? job->sink->OnError(*error) : job->sink->OnEnd();
}

void ServeEngine::Remove(const std::shared_ptr<Job>& job, const char* finished) {
  job->over = true;
  {
    const std::lock_guard lock(mutex_);
    queued_ -= job->SequencesLeft();
  }
  jobs_.erase(job->id);
  std::erase(queue_, job);
  for (auto place = places_.begin(); place != places_.end();) {
    if (place->second.job != job) {
      ++place;
      continue;
    }
    generator_->Cancel(place->first);
    place = places_.erase(place);
  }
  const auto between = [](const auto& from, const auto& to) {
    return from && to ? std::chrono::duration<double>(*to - *from).count() : -1;
  };
  const std::optional<Clock::time_point> arrived = job->arrived;
  figures_.Add({.finished = finished,
                .prompt_tokens = job->prompt_tokens,
                .generation_tokens = job->tokens,
                .queue_s = between(arrived, job->begun),
                .first_token_s = between(arrived, job->first),
                .prefill_s = between(job->begun, job->first),
                .decode_s = between(job->first, job->last),
                .all_s = between(arrived, job->last)});
}

void ServeEngine::FailBegun(const ApiError& error) {
  std::vector<std::shared_ptr<Job>> begun;
  for (const auto& [id, job] : jobs_)
    if (job->next > 0) begun.push_back(job);
  for (const std::shared_ptr<Job>& job : begun) Finish(job, &error);
}

void ServeEngine::FailAll(const ApiError& error) {
  {
    const std::lock_guard lock(mutex_);
    for (const std::shared_ptr<Job>& job : arrived_) jobs_[job->id] = job;
    arrived_.clear();
  }
  while (!jobs_.empty()) {
    const std::shared_ptr<Job> job = jobs_.begin()->second;
    Finish(job, &error);
  }
}

void ServeEngine::Publish() {
  const Generator::Load load = generator_->load();
  ServeFigures::Now now;
  now.running = load.running;
  {
    const std::lock_guard lock(mutex_);
    now.waiting = load.waiting + queued_;
    now.weight_version = version_;
  }
  now.cache_usage = 1 - static_cast<double>(load.free_pages) / static_cast<double>(limits_.pages);
  figures_.Set(now);
  CountPrompts();
}

}  // namespace millrace
