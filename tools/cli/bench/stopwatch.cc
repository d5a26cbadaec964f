#include "tools/cli/bench/stopwatch.h"

#include <bit>
#include <vector>

#include "runtime/base/philox.h"

namespace millrace {
namespace {

constexpr int64_t kPatternBytes = int64_t{32} << 20;
constexpr uint64_t kStream = 0x666c6f6f72;  // "floor"

std::vector<uint16_t> Pattern() {
  std::vector<uint16_t> values(kPatternBytes / 2);
  for (size_t i = 0; i < values.size(); i += 4) {
    const PhiloxCounter words = PhiloxBlock(1, kStream, i / 4);
    for (size_t j = 0; j < 4; ++j) {
      const auto value = static_cast<float>(2 * UnitUniform(words[j]) - 1);
      values[i + j] = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
    }
  }
  return values;
}

}  // namespace

void FillWithNoise(Device& device, std::byte* begin, int64_t bytes, Stream& stream) {
  static const std::vector<uint16_t> pattern = Pattern();
  for (int64_t at = 0; at < bytes; at += kPatternBytes)
    device.CopyFromHost(begin + at, pattern.data(), std::min(kPatternBytes, bytes - at), stream);
}

}  // namespace millrace
