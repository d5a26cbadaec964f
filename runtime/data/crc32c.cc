#include "runtime/data/crc32c.h"

#include <array>
#include <cstddef>

namespace millrace {
namespace {

// The remainder of each byte value. Bit i of a reflected remainder is the coefficient of x^(31-i).
constexpr std::array<uint32_t, 256> MakeTable() {
  constexpr uint32_t kReflected = 0x82f63b78;
  std::array<uint32_t, 256> table = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit)
      remainder = (remainder & 1) != 0 ? (remainder >> 1) ^ kReflected : remainder >> 1;
    table[byte] = remainder;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const char c : bytes)
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

}  // namespace millrace
