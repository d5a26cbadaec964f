// What a run has to say, to the program's callback, on the thread of the program's call.
//
// Other threads of the library (a save, a watchdog) are heard when the next call begins or ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/log.h"

namespace millrace {

class CallbackLog : public Log {
 public:
  using Callback = void (*)(void* user, int32_t level, const char* text);
  CallbackLog(Callback callback, void* user) : callback_(callback), user_(user) {}

  void ShowFrom(LogLevel level) noexcept { shown_ = level; }
  // Nobody listens any more.
  void Detach() noexcept;

  void Write(LogLevel level, LogScope scope, const std::string& text) noexcept override;
  bool Wants(LogLevel level) const noexcept override { return listens_ && level >= shown_; }

  // For as long as it lives, the calling thread is the program's.
  class Call {
   public:
    explicit Call(CallbackLog& log) noexcept;
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    CallbackLog& log_;
  };

 private:
  struct Message {
    LogLevel level;
    std::string text;
  };
  void Deliver() noexcept;
  void Say(const Message& message) noexcept;

  const Callback callback_;
  void* const user_;
  std::atomic<bool> listens_ = callback_ != nullptr;
  std::atomic<LogLevel> shown_ = LogLevel::kInfo;
  std::atomic<std::thread::id> caller_;
  std::mutex mutex_;  // of `waiting_`; not held while the callback runs
  std::vector<Message> waiting_;
};

}  // namespace millrace
