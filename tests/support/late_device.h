// Host memory and one kind of stream, which runs what was enqueued no sooner than the host waits
// for it, and no further. What the host reads without a wait is what was there before; what it
// writes over, or frees, while work is enqueued that reads it, that work finds written over, or
// poisoned. For tests of who waits for what, without a GPU.
#pragma once

#include <functional>
#include <memory>

#include "runtime/base/device.h"

namespace millrace::test {

class LateDevice : public Device {
 public:
  // Work of the test's own, in the stream's order.
  virtual void Enqueue(std::function<void()> work, Stream& stream) = 0;
};

// Error(kInternal): captures, timed events and paged memory, which it has not.
std::unique_ptr<LateDevice> MakeLateDevice();

}  // namespace millrace::test
