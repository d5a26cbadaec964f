// The CPU as a device: host memory, streams that have run each call when it returns.
#pragma once

#include <memory>

#include "runtime/base/device.h"

namespace millrace {

std::unique_ptr<Device> MakeHostDevice();

}  // namespace millrace
