#include "runtime/exec/arena/arena_view.h"

#include <cstring>

namespace millrace {

const std::byte* ArenaView::Look(int64_t begin, int64_t end) {
  if (device_ == nullptr) return base_ + begin;
  copy_.resize(static_cast<size_t>(end - begin));
  device_->CopyToHost(copy_.data(), base_ + begin, end - begin, *stream_);
  return copy_.data();
}

void ArenaView::Poison(int64_t begin, int64_t end) {
  if (device_ == nullptr) {
    std::memset(base_ + begin, static_cast<int>(kPoison), static_cast<size_t>(end - begin));
    return;
  }
  device_->EnqueueFill(base_ + begin, kPoison, end - begin, *stream_);
  stream_->Sync();
}

}  // namespace millrace
