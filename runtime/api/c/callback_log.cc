#include "runtime/api/c/callback_log.h"

#include <cstdint>
#include <utility>

namespace millrace {

CallbackLog::Call::Call(CallbackLog& log) noexcept : log_(log) {
  log_.caller_ = std::this_thread::get_id();
  log_.Deliver();
}

CallbackLog::Call::~Call() {
  log_.Deliver();
  log_.caller_ = std::thread::id();
}

void CallbackLog::Detach() noexcept { listens_ = false; }

void CallbackLog::Write(LogLevel level, LogScope, const std::string& text) noexcept {
  if (!Wants(level)) return;
  try {
    Message message{level, text};
    if (caller_ == std::this_thread::get_id()) return Say(message);
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(message));
  } catch (...) {  // no memory for a message is no reason to end a run
  }
}

void CallbackLog::Deliver() noexcept {
  std::vector<Message> messages;
  {
    const std::lock_guard lock(mutex_);
    messages.swap(waiting_);
  }
  for (const Message& message : messages) Say(message);
}

// A callback in C++ may throw: nothing of it comes into the library.
void CallbackLog::Say(const Message& message) noexcept {
  if (!listens_) return;
  try {
    callback_(user_, static_cast<int32_t>(message.level), message.text.c_str());
  } catch (...) {
  }
}

}  // namespace millrace
