// Asks a rank's transport whether it is known to be broken, on a thread of its own: a driver that
// does not answer holds up nobody else.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace millrace {

class TransportWatch {
 public:
  // Calls `check`, which throws where the transport is broken (CommSet::CheckHealth), every
  // `period` until it has thrown once. The destructor waits for a call that has begun.
  TransportWatch(std::function<void()> check, std::chrono::milliseconds period);
  ~TransportWatch() = default;
  TransportWatch(const TransportWatch&) = delete;
  TransportWatch& operator=(const TransportWatch&) = delete;

  // What the check threw; "" as long as it has thrown nothing. From any thread.
  std::string trouble() const;

 private:
  void Run(const std::stop_token& stop);

  const std::function<void()> check_;
  const std::chrono::milliseconds period_;
  mutable std::mutex mutex_;
  std::string trouble_;
  std::jthread thread_;
};

}  // namespace millrace
