// Host memory and streams of a device that says that it captures: what is captured runs
// as it is captured, once, and a launch runs nothing. For tests of what is done around
// a capture, without a GPU.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/device.h"

namespace millrace::test {

// What a test does at certain moments; absent: nothing.
struct DeviceHooks {
  std::function<void()> at_begin_capture = {}, at_end_capture = {};  // may throw, as a driver fails
  std::function<void()> at_sync = {};                                // of a stream; likewise
  // Of either memory, or an event; of pages that are mapped again: "mapped pages".
  std::function<void(const std::string& label)> at_allocation = {};
  // Of what is enqueued on a stream: copies and marks of one launch, either of which may be none;
  // bytes of a copy of its own, from the host or to it.
  std::function<void(std::span<const Device::Copy>, std::span<const Device::Mark>)> at_copies = {};
  std::function<void(int64_t bytes)> at_transfer = {};
  std::function<void(StreamRole)> at_stream = {};  // is made
  const bool* arena_moved = nullptr;  // once true, buffers of the device lie elsewhere
};

// Its timed events are recorded by RecordAtLaunch, as a GPU's would be, at the capture instead of
// at a launch. Error(kInternal): RecordAtLaunch outside a capture.
std::unique_ptr<Device> MakeCapturingDevice(const DeviceHooks& hooks = {});

}  // namespace millrace::test
