#include "tools/launch/output.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <system_error>
#include <utility>

namespace millrace {

Output::Output(int descriptor, std::function<void(const std::string& why)> on_trouble)
    : descriptor_(descriptor), on_trouble_(std::move(on_trouble)) {}

void Output::Add(std::string_view text) {
  if (!broken_) waiting_ += text;
}

void Output::WriteSome() {
  if (waiting_.empty()) return;
  // Asked again: both of our streams may be one pipe, which the other has just filled.
  pollfd ready = {descriptor_, POLLOUT, 0};
  if (::poll(&ready, 1, 0) <= 0) return;
  // As much as a pipe that is ready takes at once.
  const ssize_t count =
      ::write(descriptor_, waiting_.data(), std::min<size_t>(waiting_.size(), PIPE_BUF));
  if (count > 0) waiting_.erase(0, static_cast<size_t>(count));
  if (count >= 0 || errno == EINTR || errno == EAGAIN) return;
  const int error = errno;
  broken_ = true;
  waiting_.clear();
  if (on_trouble_) on_trouble_(std::generic_category().message(error));
}

bool Output::Drain(const std::function<bool()>& give_up) {
  constexpr int kLookMs = 50;
  while (waits() && !give_up()) {
    pollfd ready = {descriptor_, POLLOUT, 0};
    if (::poll(&ready, 1, kLookMs) > 0) WriteSome();
  }
  return !broken_ && !waits();
}

}  // namespace millrace
