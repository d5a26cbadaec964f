// Copies between host and device in the order of one stream, through pinned memory of their own:
// what is written waits there, what is read arrives there, and one wait is for all of it.
// Device and stream outlive it. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>

#include "runtime/base/device.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

// The first `bytes` of a plan's output, to host memory.
struct OutputRead {
  std::string_view output;
  void* to = nullptr;
  int64_t bytes = 0;
};

class HostCopies {
 public:
  HostCopies(Device& device, Stream& stream) : device_(device), stream_(stream) {}

  // Before what is enqueued on the stream from now on; `bytes` may change at once. Views that are
  // written again and again have a key each.
  void Write(int32_t key, const TensorView& to, std::span<const std::byte> bytes);

  struct Read {
    const std::byte* from = nullptr;  // of the device
    void* to = nullptr;
    int64_t bytes = 0;
  };
  // Waits for the stream; then the values that it left are in host memory.
  void Wait(std::span<const Read> reads);

 private:
  struct Staged {
    std::unique_ptr<HostBuffer> buffer;
    bool copying = false;  // since the last wait
  };
  Device& device_;
  Stream& stream_;
  std::map<int32_t, Staged> staged_;  // by key
  std::unique_ptr<HostBuffer> arrived_;
};

}  // namespace millrace
