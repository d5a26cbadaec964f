// Philox4x32-10 of runtime/base/philox.h on the device.
#pragma once

#include <cstdint>

namespace millrace::cuda {

// PhiloxBlock(seed, stream, index).
__device__ __forceinline__ uint4 PhiloxWords(uint64_t seed, uint64_t stream, uint64_t index) {
  uint4 c = {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
             static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c.x), low0 = 0xD2511F53u * c.x;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c.z), low1 = 0xCD9E8D57u * c.z;
    c = {high1 ^ c.y ^ k0, low1, high0 ^ c.w ^ k1, low0};
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return c;
}

}  // namespace millrace::cuda
