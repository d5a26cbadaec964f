// A place that holds an arena and runs streams. Implementations: runtime/base/cpu, runtime/base/cuda.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/stream.h"

namespace millrace {

// Owns one allocation; frees it on destruction. Aligned to 4096 bytes. Contents are undefined.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  virtual std::byte* data() const noexcept = 0;
  virtual int64_t bytes() const noexcept = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;
  // Error(kOutOfMemory) names the bytes asked for and the label.
  virtual std::unique_ptr<DeviceBuffer> Allocate(int64_t bytes, const std::string& label) = 0;
  virtual std::unique_ptr<Stream> MakeStream(const std::string& role) = 0;
  virtual std::unique_ptr<Event> MakeEvent() = 0;
  // Blocking copies between host memory and this device's memory; ordered after all work of `stream`.
  virtual void CopyToHost(void* host, const std::byte* device, int64_t bytes, Stream& stream) = 0;
  virtual void CopyFromHost(std::byte* device, const void* host, int64_t bytes, Stream& stream) = 0;
};

}  // namespace millrace
