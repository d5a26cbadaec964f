// How much memory a rank uses, as far as the system tells.
#pragma once

#include <cstdint>

#include "runtime/base/device.h"

namespace millrace {

// The memory that a rank's status line and summary speak of: what is in use on its
// device, or, on a host device, the most resident bytes of this process so far (VmHWM; 0
// where the system does not say).
int64_t MemoryBytes(const Device& device);

}  // namespace millrace
