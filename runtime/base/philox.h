// Philox 4x32-10: a counter-based random generator. The n-th value is a pure function of
// (key, n), so any rank can compute any element of a random sequence without computing those
// before it: initial parameters, the sample order and synthetic data are the same in every
// world, and seeking is free.
//
// Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3",
// SC 2011. Bit-compatible with its Random123 library, and with cuRAND's Philox given
// the same counter and key.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace millrace {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

constexpr PhiloxCounter Philox4x32(PhiloxCounter counter, PhiloxKey key) noexcept {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

// Four words for position `index` of stream `stream` under `seed`. Streams of one seed never
// share a counter, so they are independent sequences; number them by purpose (one per
// parameter, one per epoch, ...).
constexpr PhiloxCounter PhiloxBlock(uint64_t seed, uint64_t stream, uint64_t index) noexcept {
  return Philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                     static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

// Uniform in (0, 1), never an end point: the middle of the word's 2^-32 wide interval.
constexpr double UnitUniform(uint32_t word) noexcept { return (double(word) + 0.5) * 0x1p-32; }

// Elements 2k and 2k+1, k = `pair`, of a sequence of independent standard normal values (Box and
// Muller, in double). They share a block: the first takes the cosine of its first pair of words,
// the second of its other.
inline std::array<double, 2> PhiloxNormals(uint64_t seed, uint64_t stream, uint64_t pair) noexcept {
  const PhiloxCounter words = PhiloxBlock(seed, stream, pair);
  const auto normal = [](uint32_t radius, uint32_t angle) {
    constexpr double kTwoPi = 6.283185307179586476925286766559;
    return std::sqrt(-2 * std::log(UnitUniform(radius))) * std::cos(kTwoPi * UnitUniform(angle));
  };
  return {normal(words[0], words[1]), normal(words[2], words[3])};
}

// Element `index` of it.
inline double PhiloxNormal(uint64_t seed, uint64_t stream, uint64_t index) noexcept {
  return PhiloxNormals(seed, stream, index / 2)[index % 2];
}

}  // namespace millrace
