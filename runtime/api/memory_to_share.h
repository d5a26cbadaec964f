// Memory that other processes can map, beside a device's own (shared_memory.h). As for backend.h,
// one of two files implements it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/device.h"
#include "runtime/base/shared_memory.h"

namespace millrace {

// Of the GPU, or the host's. Errors as theirs.
std::unique_ptr<SharedMemory> MemoryToShare(const Device& device, int64_t bytes,
                                            const std::string& label);

}  // namespace millrace
