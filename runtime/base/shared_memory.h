// Memory that other processes of the host can map, by a file descriptor that they are given.
//
// It is written once and then shared: from then on nobody writes it, so whoever maps it needs no
// lock and sees no change. The memory goes with its last descriptor and its last mapping, whatever
// becomes of the process that made it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace millrace {

class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  virtual int64_t bytes() const noexcept = 0;  // whole pages: what is to be mapped
  // The GPU that has it, as nvidia-smi names it ("GPU-1b2c..."); "": host memory.
  virtual const std::string& gpu() const noexcept = 0;
  // Where it lies, on the device that has it, to be written by its streams; null once it is shared.
  virtual std::byte* data() noexcept = 0;
  // Its descriptor, which is the caller's to close. Once, when all that writes it is done.
  virtual int Share() = 0;
};

}  // namespace millrace
