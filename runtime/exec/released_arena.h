// What Engine::Release has taken from an arena, until Engine::Acquire brings it back.
//
// Addresses stay, and so does what was recorded. What a prologue makes is made again by the first
// plan that needs it; all else lies on the host meanwhile, and has its bits again.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/device.h"
#include "runtime/exec/arena/arena_part.h"

namespace millrace {

// What a release has given back, or an acquisition brought.
struct MovedMemory {
  int64_t bytes = 0;       // of the device
  int64_t host_bytes = 0;  // of states, that lie on the host between the two
  double seconds = 0;
};

struct ReleasedArena {
  struct Kept {
    BufferId state;
    int64_t at = 0;  // byte of `host`
  };
  ArenaPart part = ArenaPart::kAll;
  std::vector<ByteRange> pages;
  std::vector<Kept> kept;
  std::unique_ptr<HostBuffer> host;  // null: nothing is kept

  int64_t bytes() const { return BytesOf(pages); }
};

}  // namespace millrace
