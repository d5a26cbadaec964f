// A number per stream, -1 at first: of a vector clock, or of an op on each stream.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "runtime/base/stream_id.h"

namespace millrace {

// Streams that a plan may name. More than kStreams, so that a plan can be derived and proved before
// an executor has the stream.
inline constexpr int kMostStreams = 8;
static_assert(kStreams <= kMostStreams);

class StreamClock {
 public:
  constexpr StreamClock() { latest_.fill(-1); }

  constexpr int32_t& operator[](StreamId stream) { return latest_[static_cast<size_t>(stream)]; }
  constexpr int32_t operator[](StreamId stream) const {
    return latest_[static_cast<size_t>(stream)];
  }
  // Of each stream the later one.
  constexpr void Join(const StreamClock& other) {
    for (size_t s = 0; s < latest_.size(); ++s) latest_[s] = std::max(latest_[s], other.latest_[s]);
  }
  constexpr void Join(StreamId stream, int32_t op) {
    (*this)[stream] = std::max((*this)[stream], op);
  }
  constexpr void Clear() { latest_.fill(-1); }

  constexpr auto begin() const { return latest_.begin(); }
  constexpr auto end() const { return latest_.end(); }

 private:
  std::array<int32_t, kMostStreams> latest_;
};

constexpr bool IsStream(StreamId stream) {
  return static_cast<int>(stream) >= 0 && static_cast<int>(stream) < kMostStreams;
}

}  // namespace millrace
