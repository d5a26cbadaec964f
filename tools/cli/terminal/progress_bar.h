// A bar for work on files, on standard error: drawn over itself on a terminal, a line every ten
// seconds elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace millrace {

class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar();  // ends the bar's line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  struct State {
    int64_t bytes = 0, total_bytes = 0;
    int64_t bytes_before = 0;  // of `bytes`, done before the work began: they say nothing of speed
    std::string what;          // "12.3M tokens"
  };
  void Show(const State& state);  // draws at most ten times a second

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_;
  Clock::time_point began_, shown_;
  bool drawn_ = false;
};

}  // namespace millrace
