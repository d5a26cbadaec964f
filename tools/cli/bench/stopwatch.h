// Times of calls on a device, by its own clock, and numbers for them to work on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>

#include "runtime/base/device.h"

namespace millrace {

class Stopwatch {
 public:
  explicit Stopwatch(Device& device)
      : device_(device), begin_(device.MakeTimedEvent()), end_(device.MakeTimedEvent()) {}

  // Milliseconds from the first of what `issue` puts on `stream` to the last. Waits for it.
  template <class F>
  double Time(Stream& stream, F&& issue) {
    stream.Record(*begin_);
    issue();
    stream.Record(*end_);
    device_.SyncEvent(*end_);
    return device_.MillisecondsBetween(*begin_, *end_);
  }

  // Microseconds of one call: the best of several batches of `calls`, 0: of as many as fill
  // kBatchMs. Where the device can, and `capture`, a batch is one graph, as in a step: issued one
  // by one, calls of a few microseconds take as long as the host does.
  template <class F>
  double Best(Stream& stream, int calls, bool capture, F&& issue) {
    Time(stream, issue);  // loads the kernel
    const double once = std::max(Time(stream, issue), 1e-3);
    if (calls == 0) calls = static_cast<int>(std::clamp(kBatchMs / once, 1.0, kMostCalls));
    const auto all = [&] {
      for (int i = 0; i < calls; ++i) issue();
    };
    std::unique_ptr<Graph> graph;
    if (capture && device_.captures()) {
      device_.BeginCapture(stream);
      all();
      graph = device_.EndCapture(stream);
      graph->Launch(stream);
    }
    double best = std::numeric_limits<double>::infinity();
    for (int batch = 0; batch < kBatches; ++batch) {
      const double ms = graph ? Time(stream, [&] { graph->Launch(stream); }) : Time(stream, all);
      best = std::min(best, 1e3 * ms / calls);
    }
    return best;
  }

 private:
  static constexpr int kBatches = 5;
  static constexpr double kBatchMs = 2;
  static constexpr double kMostCalls = 200;  // per batch

  Device& device_;
  std::unique_ptr<Event> begin_, end_;
};

// Uniform numbers in (-1, 1) as bf16; a pair of them read as one f32 is such a number too.
void FillWithNoise(Device& device, std::byte* begin, int64_t bytes, Stream& stream);

}  // namespace millrace
