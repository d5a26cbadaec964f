#include "tools/cli/terminal/progress_bar.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "tools/cli/terminal/console.h"

namespace millrace {
namespace {

std::string Bar(double part) {
  constexpr int kWidth = 30;
  const int filled = std::clamp(static_cast<int>(part * kWidth), 0, kWidth);
  return std::string(static_cast<size_t>(filled), '#') +
         std::string(static_cast<size_t>(kWidth - filled), '.');
}

}  // namespace

ProgressBar::ProgressBar()
    : terminal_(isatty(STDERR_FILENO) == 1), began_(Clock::now()), shown_(began_) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::cerr << "\r\033[K" << std::flush;
}

void ProgressBar::Show(const State& state) {
  const Clock::time_point now = Clock::now();
  if (now - shown_ < (terminal_ ? std::chrono::milliseconds(100) : std::chrono::seconds(10)))
    return;
  shown_ = now;
  const double seconds = std::chrono::duration<double>(now - began_).count();
  const double rate = static_cast<double>(state.bytes - state.bytes_before) / seconds;
  const double part = state.total_bytes > 0 ? static_cast<double>(state.bytes) /
                                                  static_cast<double>(state.total_bytes)
                                            : 1;
  const double left = static_cast<double>(state.total_bytes - state.bytes) / std::max(rate, 1.0);
  const std::string text =
      fmt::format("[{}] {:3.0f}%  {}/s  {}  eta {}", Bar(part), 100 * part,
                  HumanBytes(static_cast<int64_t>(rate)), state.what, HumanDuration(left));
  if (terminal_)
    std::cerr << "\r\033[K" << text << std::flush;
  else
    std::cerr << text << std::endl;
  drawn_ = terminal_;
}

}  // namespace millrace
