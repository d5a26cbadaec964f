// FNV-1a with 64 bits: short names for things that one program makes and compares. For bytes that
// come back from a disk there is runtime/data/hash.h.
#pragma once

#include <cstdint>
#include <string_view>

namespace millrace {

constexpr uint64_t Fnv1a64(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
  return hash;
}

}  // namespace millrace
