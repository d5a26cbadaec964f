#include "runtime/watch/transport_watch.h"

#include <condition_variable>
#include <exception>
#include <utility>

namespace millrace {

TransportWatch::TransportWatch(std::function<void()> check, std::chrono::milliseconds period)
    : check_(std::move(check)), period_(period) {
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

std::string TransportWatch::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

void TransportWatch::Run(const std::stop_token& stop) {
  std::condition_variable_any wake;
  std::mutex sleeping;
  while (true) {
    {
      std::unique_lock lock(sleeping);
      wake.wait_for(lock, stop, period_, [] { return false; });
    }
    if (stop.stop_requested()) return;
    try {
      check_();
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      trouble_ = error.what();
      return;
    }
  }
}

}  // namespace millrace
