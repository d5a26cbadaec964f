// Which op has finished before which begins: vector clocks over ops in issue order. Stream order
// and waits are all it knows.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/plan/schedule/stream_clock.h"

namespace millrace {

class HappensBefore {
 public:
  // Appends an op that waits for the ops in `waits` (indices of earlier ops); returns its index.
  int32_t Append(StreamId stream, std::span<const int32_t> waits) {
    StreamClock& tail = tail_.at(static_cast<size_t>(stream));
    for (const int32_t wait : waits) {
      const Op& from = ops_[static_cast<size_t>(wait)];
      tail.Join(from.finished);
      tail.Join(from.stream, wait);
    }
    const auto index = static_cast<int32_t>(ops_.size());
    ops_.push_back({tail, stream});
    tail[stream] = index;
    return index;
  }

  // All streams wait for all that has been appended.
  void Join() {
    joined_ = static_cast<int32_t>(ops_.size());
    tail_.fill({});
  }

  // Has `a` finished when `b` begins? False for a == b.
  bool operator()(int32_t a, int32_t b) const {
    if (a < joined_ && b >= joined_) return true;
    return ops_[static_cast<size_t>(b)].finished[ops_[static_cast<size_t>(a)].stream] >= a;
  }
  int32_t count() const { return static_cast<int32_t>(ops_.size()); }

  // Do the ops [begin, count()) know what as many ops before them knew, with each op since `first`
  // moved on by as many places? Then so will as many more, if their waits are moved on alike.
  bool Repeats(int32_t first, int32_t begin) const {
    const int32_t period = count() - begin;
    if (begin - period < first) return false;
    const auto shifted = [&](int32_t op) { return op < first ? op : op + period; };
    std::array<bool, kMostStreams> used{};
    for (int32_t i = begin; i < count(); ++i) {
      const Op &was = ops_[static_cast<size_t>(i - period)], &is = ops_[static_cast<size_t>(i)];
      if (was.stream != is.stream) return false;
      if (!std::equal(was.finished.begin(), was.finished.end(), is.finished.begin(),
                      [&](int32_t w, int32_t n) { return shifted(w) == n; }))
        return false;
      used[static_cast<size_t>(is.stream)] = true;
    }
    // A stream without an op in between still knows what it knew.
    for (size_t s = 0; s < used.size(); ++s)
      for (const int32_t known : tail_[s])
        if (!used[s] && known >= first) return false;
    return true;
  }

  StreamId stream(int32_t op) const { return ops_[static_cast<size_t>(op)].stream; }

 private:
  struct Op {
    StreamClock finished;  // per stream, the latest op known to have finished; -1 none
    StreamId stream;
  };
  std::vector<Op> ops_;
  std::array<StreamClock, kMostStreams> tail_;  // of each stream's next op
  int32_t joined_ = 0;
};

}  // namespace millrace
