// What the endpoint has done, for Prometheus: vLLM's figures by their meaning, under our prefix.
//
// Threads  Any.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "runtime/infer/generator.h"

namespace millrace {

// Seconds by bucket.
class Histogram {
 public:
  static constexpr std::array<double, 14> kBounds = {.001, .003, .01, .03, .1, .2, .5,
                                                     1,    2,    5,   10,  30, 60, 300};
  void Add(double seconds);
  std::string Text(std::string_view name, std::string_view help) const;

 private:
  std::array<int64_t, kBounds.size() + 1> counts_ = {};
  double sum_ = 0;
};

class ServeFigures {
 public:
  // Of the generator now.
  struct Now {
    int64_t running = 0, waiting = 0;  // sequences
    double cache_usage = 0;            // share of pages that are taken
    uint64_t weight_version = 0;
  };
  // Of one request that has ended. Times in seconds; below 0: it did not come that far.
  struct Request {
    std::string finished = "stop";  // stop, length, abort, error
    int64_t prompt_tokens = 0, generation_tokens = 0;
    double queue_s = -1, first_token_s = -1, prefill_s = -1, decode_s = -1, all_s = -1;
  };

  void Set(const Now& now);
  void AddTokenGap(double seconds);                        // between two tokens of a sample
  void AddPrompts(const Generator::PromptTokens& tokens);  // since the last time
  void Add(const Request& request);
  void Refuse();  // before it was queued

  std::string PrometheusText() const;

 private:
  mutable std::mutex mutex_;
  Now now_;
  int64_t prompt_tokens_ = 0, generation_tokens_ = 0, refused_ = 0;
  Generator::PromptTokens cached_;
  std::array<int64_t, 4> finished_ = {};
  Histogram first_token_, gap_, all_, queue_, prefill_, decode_;
};

}  // namespace millrace
