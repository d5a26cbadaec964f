// Ordered queues of device work, and marks in them. Implementations: runtime/base/cpu (a host
// stream runs each call at once), runtime/base/cuda.
//
// Threads  A stream is used by one thread at a time.
#pragma once

#include <memory>

namespace millrace {

class Event {
 public:
  virtual ~Event() = default;
};

// What a stream is for. Where a device can choose, collectives go first: communication that waits
// behind a full GPU of compute blocks overlaps nothing. A chain, in which each op waits for the one
// before it, goes ahead of what computes beside it, and that has the room which it leaves.
enum class StreamRole { kCompute, kChain, kCollectives };

class Stream {
 public:
  virtual ~Stream() = default;

  // Marks this point of the stream in `event`; later waits on the event wait for
  // all work enqueued before.
  virtual void Record(Event& event) = 0;
  // Later work on this stream starts after `event`. Does not block the host.
  virtual void Wait(const Event& event) = 0;
  // Blocks the host until all work enqueued has finished. For set-up, tear-down and
  // the named read-backs only.
  virtual void Sync() = 0;
};

}  // namespace millrace
