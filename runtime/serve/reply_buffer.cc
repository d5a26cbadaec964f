#include "runtime/serve/reply_buffer.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace millrace {

void ReplyBuffer::Wake(std::unique_lock<std::mutex> lock) {
  if (!wake_ || !HasNews()) return;
  const std::function<void()> wake = std::exchange(wake_, nullptr);
  lock.unlock();
  wake();
}

void ReplyBuffer::Begin(ReplyHead head) {
  std::unique_lock lock(mutex_);
  head_ = std::move(head);
  begun_ = true;
  Wake(std::move(lock));
}

size_t ReplyBuffer::Append(std::string_view bytes) {
  std::unique_lock lock(mutex_);
  bytes_.erase(0, std::exchange(read_, 0));
  bytes_ += bytes;
  const size_t unread = bytes_.size();
  Wake(std::move(lock));
  return unread;
}

void ReplyBuffer::End() {
  std::unique_lock lock(mutex_);
  ended_ = true;
  on_abandon_ = nullptr;
  Wake(std::move(lock));
}

void ReplyBuffer::Whole(ReplyHead head, std::string body) {
  Begin(std::move(head));
  Append(body);
  End();
}

void ReplyBuffer::Error(const ApiError& error) {
  ReplyHead head{.status = error.status};
  if (error.retry_after_s > 0) head.headers["Retry-After"] = std::to_string(error.retry_after_s);
  if (!error.allow.empty()) head.headers["Allow"] = error.allow;
  if (error.status == 401) head.headers["WWW-Authenticate"] = "Bearer";
  Whole(std::move(head), ErrorJson(error));
}

bool ReplyBuffer::HasNews() const {
  return begun_ && (ended_ || (head_.is_stream && read_ < bytes_.size()));
}

bool ReplyBuffer::Ready(std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  if (HasNews()) return true;
  wake_ = std::move(wake);
  return false;
}

ReplyHead ReplyBuffer::head() const {
  const std::lock_guard lock(mutex_);
  return head_;
}

size_t ReplyBuffer::Read(char* to, size_t most) {
  const std::lock_guard lock(mutex_);
  const size_t count = std::min(most, bytes_.size() - read_);
  std::memcpy(to, bytes_.data() + read_, count);
  read_ += count;
  return count;
}

std::string ReplyBuffer::TakeAll() {
  const std::lock_guard lock(mutex_);
  bytes_.erase(0, std::exchange(read_, 0));
  return std::exchange(bytes_, {});
}

bool ReplyBuffer::AtEnd() const {
  const std::lock_guard lock(mutex_);
  return ended_ && read_ == bytes_.size();
}

void ReplyBuffer::OnAbandon(std::function<void()> call) {
  const std::lock_guard lock(mutex_);
  if (!ended_) on_abandon_ = std::move(call);
}

void ReplyBuffer::Abandon() {
  std::unique_lock lock(mutex_);
  wake_ = nullptr;
  const std::function<void()> call = std::exchange(on_abandon_, nullptr);
  lock.unlock();
  if (call) call();
}

}  // namespace millrace
