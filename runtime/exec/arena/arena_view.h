// The arena as a checker sees it from the host: bytes are looked at and poisoned wherever they lie.
// For checked execution and tests; each call waits for the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/device.h"

namespace millrace {

inline constexpr std::byte kPoison{0xFF};

class ArenaView {
 public:
  // Host memory at `base`.
  explicit ArenaView(std::byte* base) : base_(base) {}
  // Memory of `device` at `base`; all work on it has been joined to `stream`, or
  // waited for, before each call.
  ArenaView(std::byte* base, Device& device, Stream& stream)
      : base_(base), device_(&device), stream_(&stream) {}

  std::byte* base() const { return base_; }
  // The bytes [begin, end) as they are now, for as long as nobody calls Look again.
  const std::byte* Look(int64_t begin, int64_t end);
  void Poison(int64_t begin, int64_t end);

 private:
  std::byte* base_;
  Device* device_ = nullptr;  // null: host memory
  Stream* stream_ = nullptr;
  std::vector<std::byte> copy_;
};

}  // namespace millrace
