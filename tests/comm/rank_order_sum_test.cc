#include "comm/rank_order_sum.h"

#include <catch2/catch.hpp>
#include <limits>
#include <vector>

#include "runtime/base/error.h"
#include "tests/comm/rank_data.h"

namespace millrace::testing {
namespace {

template <typename T>
std::vector<const std::byte*> Terms(const std::vector<std::vector<T>>& data) {
  std::vector<const std::byte*> terms;
  for (const std::vector<T>& term : data)
    terms.push_back(reinterpret_cast<const std::byte*>(term.data()));
  return terms;
}

template <typename T>
void SumsInRankOrder(DType dtype) {
  const int world = GENERATE(1, 2, 3, 7);
  const int64_t n = GENERATE(0, 1, 511, 512, 513, 1500);
  std::vector<std::vector<T>> data(static_cast<size_t>(world));
  for (int r = 0; r < world; ++r)
    for (int64_t i = 0; i < n; ++i) data[r].push_back(TermAs<T>(r, i));
  std::vector<T> out(static_cast<size_t>(n));
  RankOrderSum(dtype, Terms(data), reinterpret_cast<std::byte*>(out.data()), n);
  // Onto its own last term.
  RankOrderSum(dtype, Terms(data), reinterpret_cast<std::byte*>(data.back().data()), n);
  int64_t wrong = 0;
  for (int64_t i = 0; i < n; ++i) {
    const T expected = RankOrderOracle<T>(world, i);
    wrong += !SameBits(out[i], expected) + !SameBits(data.back()[i], expected);
  }
  CAPTURE(world, n);
  REQUIRE(wrong == 0);
}

TEST_CASE("f32 sums go in rank order, onto a term as well", "[comm]") {
  SumsInRankOrder<float>(DType::kF32);
}
TEST_CASE("bf16 sums accumulate in f32 in rank order", "[comm]") {
  SumsInRankOrder<BFloat16>(DType::kBF16);
}
TEST_CASE("f16 sums accumulate in f32 in rank order, and overflow to infinity once", "[comm]") {
  SumsInRankOrder<Float16>(DType::kF16);
  // The second addition alone would overflow; the sum does not.
  const std::vector<std::vector<Float16>> data = {{ToFloat16(60000), ToFloat16(60000)},
                                                  {ToFloat16(60000), ToFloat16(6000)},
                                                  {ToFloat16(-60000), ToFloat16(0)}};
  std::vector<Float16> out(2);
  RankOrderSum(DType::kF16, Terms(data), reinterpret_cast<std::byte*>(out.data()), 2);
  REQUIRE(ToFloat(out[0]) == 60000);
  REQUIRE(out[1].bits == 0x7c00);
}
TEST_CASE("f64 sums accumulate in double in rank order", "[comm]") {
  SumsInRankOrder<double>(DType::kF64);
}

TEST_CASE("a bf16 sum is rounded once", "[comm]") {
  // Neighbours of 256 in bf16 are 2 apart: rounded after each addition, 256 + 1 + 1 would stay 256.
  const std::vector<std::vector<BFloat16>> data = {
      {ToBFloat16(256.0f)}, {ToBFloat16(1.0f)}, {ToBFloat16(1.0f)}};
  BFloat16 out{};
  RankOrderSum(DType::kBF16, Terms(data), reinterpret_cast<std::byte*>(&out), 1);
  REQUIRE(ToFloat(out) == 258.0f);
}

TEST_CASE("infinities, NaN and minus zero sum as IEEE says", "[comm]") {
  const float inf = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> data = {{inf, inf, nan, -0.0f, 3e38f},
                                                {1.0f, -inf, 1.0f, -0.0f, 3e38f}};
  std::vector<float> out(5);
  RankOrderSum(DType::kF32, Terms(data), reinterpret_cast<std::byte*>(out.data()), 5);
  REQUIRE(out[0] == inf);
  REQUIRE(out[1] != out[1]);
  REQUIRE(out[2] != out[2]);
  REQUIRE(SameBits(out[3], -0.0f));
  REQUIRE(out[4] == inf);
}

TEST_CASE("integers and empty sums are refused", "[comm]") {
  const std::vector<std::vector<int32_t>> data = {{1}, {2}};
  int32_t out = 0;
  REQUIRE_THROWS_WITH(RankOrderSum(DType::kI32, Terms(data), reinterpret_cast<std::byte*>(&out), 1),
                      Catch::Contains("i32"));
  REQUIRE_THROWS_AS(RankOrderSum(DType::kF32, {}, reinterpret_cast<std::byte*>(&out), 1), Error);
}

}  // namespace
}  // namespace millrace::testing
