// A run of a plan of an era: what the host gives it ahead, and what is read of it behind.
//
// Launch   (Engine::LaunchInEra) enqueues it and returns its number, above those before. The host
//          does not wait for the device.
// Collect  (CollectInEra) waits for a run; returns its reads, in their order, which stand until the
//          next launch. Each run is collected once, in any order, or dropped; others may be
//          launched in between.
// Drop     (DropInEra) waits for all runs that were launched; nobody collects them. What the device
//          has to say of them is said by the next call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// What the host writes of a state, from `offset` on; they may change when the run is launched.
struct StateWrite {
  std::string_view state;
  int64_t offset = 0;
  std::span<const std::byte> bytes;
};

// The same of which the values are those of another run, [from, from + bytes) of its read `read`;
// the host need not know them yet. No write has these bytes.
struct StateFeed {
  std::string_view state;
  int64_t offset = 0;
  int64_t run = 0;  // launched, not collected
  size_t read = 0;
  int64_t from = 0, bytes = 0;
};

// The first `bytes` of an output of the plan.
struct OutputRead {
  std::string_view output;
  int64_t bytes = 0;
};

struct EraRun {
  std::string plan;
  std::vector<StateWrite> writes = {};
  std::vector<StateFeed> feeds = {};
  std::vector<OutputRead> reads = {};
};

}  // namespace millrace
