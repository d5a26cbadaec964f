// Words of device memory in which the blocks of a grid count themselves, so that the last one knows
// that it is and can finish the work of all: one launch where else a second kernel, or a memset
// before, had to wait.
//
// A word is zero whenever no kernel that uses it is running: the last block sets it back. (Words in
// which all blocks of a grid meet are not, and so are kept apart: matmul/row_linear.cc.) Two grids
// on one word at once would break both, so a word belongs to an address that its grid writes (its
// scratch or its result): two launches that share that address race for it already, and every plan
// keeps them apart, whatever their streams and graphs. Words live as long as the device; captured
// graphs may keep pointers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "runtime/base/cuda/cuda_device.h"

namespace millrace::cuda {

// One of a device: CudaDevice::Attached<Tickets>().
class Tickets {
 public:
  explicit Tickets(CudaDevice&) {}
  ~Tickets();
  Tickets(const Tickets&) = delete;
  Tickets& operator=(const Tickets&) = delete;

  // The word of `written`, aligned to 8 bytes. Allocates 16 KiB of the device at the first address
  // and at every 2048th after it. Error(kDevice), Error(kOutOfMemory).
  uint64_t* Of(const std::byte* written);

 private:
  static constexpr size_t kWords = 2048;  // of an allocation

  std::vector<uint64_t*> chunks_;
  std::unordered_map<const std::byte*, uint64_t*> words_;
};

}  // namespace millrace::cuda
