// Ids on their way into a vector, many at once: to append them one by one costs as much as to find
// them. What is not flushed when a buffer ends is lost.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace millrace {

class IdBuffer {
 public:
  static constexpr int32_t kNoId = -1;

  explicit IdBuffer(std::vector<int32_t>& ids) : ids_(ids) {}

  static constexpr std::array<int32_t, 4> One(int32_t id) { return {id, kNoId, kNoId, kNoId}; }

  // The ids before the first kNoId, at least one. Writes all places, which is quicker than to
  // ask.
  template <size_t kMost>
  void Take(const std::array<int32_t, kMost>& ids) {
    if (filled_ + ids.size() > buffer_.size()) Flush();
    int32_t* const places = buffer_.data() + filled_;
    for (size_t i = 0; i < kMost; ++i) places[i] = ids[i];
    ++filled_;
    for (size_t i = 1; i < kMost; ++i) filled_ += ids[i] != kNoId;
  }

  // write(places): writes up to `most` ids, returns how many.
  template <typename Write>
  void Append(size_t most, const Write& write) {
    if (filled_ + most > buffer_.size()) Flush();
    if (most <= buffer_.size()) {
      filled_ += write(buffer_.data() + filled_);
      return;
    }
    const size_t before = ids_.size();
    ids_.resize(before + most);
    ids_.resize(before + write(ids_.data() + before));
  }

  void Flush() {
    ids_.insert(ids_.end(), buffer_.begin(), buffer_.begin() + int64_t(filled_));
    filled_ = 0;
  }

 private:
  std::vector<int32_t>& ids_;
  std::array<int32_t, 512> buffer_;
  size_t filled_ = 0;
};

}  // namespace millrace
