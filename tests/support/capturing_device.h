// Host memory and streams of a device that says that it captures: what is captured runs
// as it is captured, once, and a launch runs nothing. For tests of what is done around
// a capture, without a GPU.
#pragma once

#include <memory>

#include "runtime/base/device.h"

namespace millrace::test {

// Its timed events are recorded by RecordAtLaunch, as a GPU's would be, at the capture instead of
// at a launch. Error(kInternal): RecordAtLaunch outside a capture.
std::unique_ptr<Device> MakeCapturingDevice();

}  // namespace millrace::test
