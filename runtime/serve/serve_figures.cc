#include "runtime/serve/serve_figures.h"

#include <fmt/core.h>

#include <algorithm>

namespace millrace {
namespace {

constexpr std::array<std::string_view, 4> kFinished = {"stop", "length", "abort", "error"};

std::string Head(std::string_view name, std::string_view type, std::string_view help) {
  return fmt::format("# HELP millrace_{0} {2}\n# TYPE millrace_{0} {1}\n", name, type, help);
}

template <class T>
std::string Line(std::string_view name, std::string_view type, std::string_view help, T value) {
  return Head(name, type, help) + fmt::format("millrace_{} {}\n", name, value);
}

}  // namespace

void Histogram::Add(double seconds) {
  const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
  ++counts_[static_cast<size_t>(bound - kBounds.begin())];
  sum_ += seconds;
}

std::string Histogram::Text(std::string_view name, std::string_view help) const {
  std::string text = Head(name, "histogram", help);
  int64_t count = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    count += counts_[i];
    text += fmt::format("millrace_{}_bucket{{le=\"{}\"}} {}\n", name,
                        i < kBounds.size() ? fmt::format("{}", kBounds[i]) : "+Inf", count);
  }
  return text + fmt::format("millrace_{0}_sum {1}\nmillrace_{0}_count {2}\n", name, sum_, count);
}

void ServeFigures::Set(const Now& now) {
  const std::lock_guard lock(mutex_);
  now_ = now;
}

void ServeFigures::AddTokenGap(double seconds) {
  const std::lock_guard lock(mutex_);
  gap_.Add(seconds);
}

void ServeFigures::AddPrompts(const Generator::PromptTokens& tokens) {
  const std::lock_guard lock(mutex_);
  cached_.computed += tokens.computed;
  cached_.shared += tokens.shared;
}

void ServeFigures::Add(const Request& request) {
  const std::lock_guard lock(mutex_);
  const auto finished = std::find(kFinished.begin(), kFinished.end(), request.finished);
  if (finished != kFinished.end()) ++finished_[static_cast<size_t>(finished - kFinished.begin())];
  prompt_tokens_ += request.prompt_tokens;
  generation_tokens_ += request.generation_tokens;
  if (request.queue_s >= 0) queue_.Add(request.queue_s);
  if (request.first_token_s >= 0) first_token_.Add(request.first_token_s);
  if (request.prefill_s >= 0) prefill_.Add(request.prefill_s);
  if (request.decode_s >= 0) decode_.Add(request.decode_s);
  if (request.all_s >= 0) all_.Add(request.all_s);
}

void ServeFigures::Refuse() {
  const std::lock_guard lock(mutex_);
  ++refused_;
}

std::string ServeFigures::PrometheusText() const {
  const std::lock_guard lock(mutex_);
  std::string text =
      Line("num_requests_running", "gauge", "Sequences that tokens are made for.", now_.running) +
      Line("num_requests_waiting", "gauge", "Sequences that wait for a slot.", now_.waiting) +
      Line("kv_cache_usage_perc", "gauge", "Share of the cache's pages in use, 0 to 1.",
           now_.cache_usage) +
      Line("weight_version", "gauge", "Step of the weights in use.", now_.weight_version) +
      Line("prompt_tokens_total", "counter", "Tokens of prompts, of ended requests.",
           prompt_tokens_) +
      Line("prefix_cache_queries_total", "counter",
           "Tokens of prompts that samples began with, computed or found.",
           cached_.computed + cached_.shared) +
      Line("prefix_cache_hits_total", "counter",
           "Of these, found in a prefix that a sample of the same request had cached.",
           cached_.shared) +
      Line("generation_tokens_total", "counter", "Tokens made, of ended requests.",
           generation_tokens_) +
      Line("request_refused_total", "counter", "Requests refused before they were queued.",
           refused_) +
      Head("request_success_total", "counter", "Requests that ended, by how.");
  for (size_t i = 0; i < kFinished.size(); ++i)
    text += fmt::format("millrace_request_success_total{{finished_reason=\"{}\"}} {}\n",
                        kFinished[i], finished_[i]);
  return text + first_token_.Text("time_to_first_token_seconds", "From arrival to a token.") +
         gap_.Text("inter_token_latency_seconds", "Between two tokens of an answer.") +
         all_.Text("e2e_request_latency_seconds", "From arrival to the last token.") +
         queue_.Text("request_queue_time_seconds", "From arrival to a slot.") +
         prefill_.Text("request_prefill_time_seconds", "From a slot to the first token.") +
         decode_.Text("request_decode_time_seconds", "From the first token to the last.");
}

}  // namespace millrace
