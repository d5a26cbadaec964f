#include "runtime/base/cuda/gpu_uuid.h"

#include <fmt/core.h>

#include <cstddef>

namespace millrace {

std::string GpuUuid(const cudaDeviceProp& properties) {
  std::string text = "GPU";
  for (size_t i = 0; i < sizeof properties.uuid.bytes; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(properties.uuid.bytes[i]));
  }
  return text;
}

}  // namespace millrace
