// Host memory that other processes map: a sealed memfd.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/shared_memory.h"

namespace millrace {

// Zeros. Whoever maps it asks for MAP_PRIVATE: the seal forbids shared mappings that might be
// written. Error(kOutOfMemory) names the bytes asked for and the label.
std::unique_ptr<SharedMemory> MakeHostSharedMemory(int64_t bytes, const std::string& label);

}  // namespace millrace
