#include "runtime/base/philox.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <vector>

namespace millrace {
namespace {

// The three published vectors for philox4x32-10: Random123, tests/kat_vectors.
static_assert(Philox4x32({0, 0, 0, 0}, {0, 0}) ==
              PhiloxCounter{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});

TEST_CASE("philox4x32-10 gives Random123's known answers", "[base][philox]") {
  REQUIRE(Philox4x32({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu},
                     {0xffffffffu, 0xffffffffu}) ==
          PhiloxCounter{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  REQUIRE(Philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
                     {0xa4093822u, 0x299f31d0u}) ==
          PhiloxCounter{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
}

TEST_CASE("seed, stream and index go to the key, the upper and the lower counter words",
          "[base][philox]") {
  REQUIRE(PhiloxBlock(0x299f31d0a4093822u, 0x0370734413198a2eu, 0x85a308d3243f6a88u) ==
          PhiloxCounter{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
}

TEST_CASE("every bit of seed, stream and index matters", "[base][philox]") {
  std::set<PhiloxCounter> blocks = {PhiloxBlock(0, 0, 0)};
  for (int bit = 0; bit < 64; ++bit) {
    blocks.insert(PhiloxBlock(uint64_t{1} << bit, 0, 0));
    blocks.insert(PhiloxBlock(0, uint64_t{1} << bit, 0));
    blocks.insert(PhiloxBlock(0, 0, uint64_t{1} << bit));
  }
  REQUIRE(blocks.size() == 1 + 3 * 64);
}

TEST_CASE("uniform values stay inside (0, 1)", "[base][philox]") {
  REQUIRE(UnitUniform(0) == 0x1p-33);
  REQUIRE(UnitUniform(0xffffffffu) == 1 - 0x1p-33);
}

TEST_CASE("normal values have the moments and the distribution function of a normal",
          "[base][philox]") {
  const int64_t n = 200000;
  std::vector<double> values(n);
  double sum = 0, squares = 0, neighbours = 0;
  for (int64_t i = 0; i < n; ++i) {
    values[i] = PhiloxNormal(7, 3, i);
    sum += values[i];
    squares += values[i] * values[i];
    if (i > 0) neighbours += values[i] * values[i - 1];
  }
  const double root = std::sqrt(double(n));
  REQUIRE(std::fabs(sum / n) < 4 / root);  // four standard errors each
  REQUIRE(std::fabs(squares / n - 1) < 4 * std::sqrt(2.0) / root);
  REQUIRE(std::fabs(neighbours / n) < 4 / root);
  // Kolmogorov-Smirnov: 1.95 / sqrt(n) is passed by chance once in a thousand; the sequence is
  // fixed, so this cannot flake.
  std::sort(values.begin(), values.end());
  double distance = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double expected = 0.5 * std::erfc(-values[i] / std::sqrt(2.0));
    distance = std::max(
        {distance, std::fabs(expected - double(i) / n), std::fabs(expected - double(i + 1) / n)});
  }
  REQUIRE(distance < 1.95 / root);
}

}  // namespace
}  // namespace millrace
