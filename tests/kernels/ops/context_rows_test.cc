#include "kernels/ops/context_rows.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <set>
#include <vector>

#include "kernels/ops/cost.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

// The positions of the rank of place c: chunks c and 2n-1-c of 2n.
std::vector<int64_t> PositionsOf(int64_t n, int64_t rows, int64_t c) {
  std::vector<int64_t> positions;
  const int64_t chunk = n == 1 ? rows : rows / 2;
  for (const int64_t j : {c, 2 * n - 1 - c}) {
    for (int64_t i = 0; i < chunk; ++i) positions.push_back(j * chunk + i);
    if (n == 1) break;
  }
  return positions;
}

TEST_CASE("every position has one place among gathered rows, its rank's") {
  for (int64_t n = 1; n <= 5; ++n) {
    for (const int64_t rows : {2, 6, 10}) {
      for (int64_t batch = 1; batch <= 3; ++batch) {
        for (int64_t b = 0; b < batch; ++b) {
          for (int64_t c = 0; c < n; ++c) {
            const std::vector<int64_t> positions = PositionsOf(n, rows, c);
            for (int64_t i = 0; i < rows; ++i) {
              const GatheredPlace place =
                  PlaceOf(n, batch, rows, b, positions[static_cast<size_t>(i)]);
              CAPTURE(n, rows, batch, b, c, i);
              REQUIRE(place.outer == c * batch + b);
              REQUIRE(place.row == i);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("the starts of a rank's chunks follow from its place") {
  const Mesh mesh = Mesh(1, 2).With(Axis::kContext, 3).With(Axis::kTensor, 2);
  const ContextRows rows = ZigzagRows(3, 14, Axis::kContext);
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const int64_t c = mesh.Index(rank, Axis::kContext);
    ContextRows bound = rows;
    ContextRows::VisitRankInts(
        bound, [&](RankInt& integer, std::string_view) { integer = integer.At(mesh, rank); });
    CHECK(ChunkStarts(bound, 14) == std::array<int64_t, 2>{7 * c, 7 * (5 - c)});
  }
  CHECK(ZigzagRows(1, 7, Axis::kContext) == ContextRows{});
  CHECK_THROWS_AS(ZigzagRows(2, 7, Axis::kContext), Error);
  int integers = 0;
  ContextRows whole;
  ContextRows::VisitRankInts(whole, [&](RankInt&, std::string_view) { ++integers; });
  CHECK(integers == 0);
}

TEST_CASE("ranks have the same number of causal pairs, and nearly the same of blocks") {
  for (int64_t n = 1; n <= 6; ++n) {
    for (const int64_t rows : {2, 10, 62, 64, 126, 128, 130, 256, 386}) {
      for (const int64_t block : {1, 16, 64, 128}) {
        int64_t least = std::numeric_limits<int64_t>::max(), most = 0;
        for (int64_t c = 0; c < n; ++c) {
          const std::vector<int64_t> positions = PositionsOf(n, rows, c);
          const int64_t chunk = n == 1 ? rows : rows / 2;
          int64_t pairs = 0;
          std::set<std::pair<int64_t, int64_t>> blocks;
          for (int64_t i = 0; i < rows; ++i) {
            const int64_t t = positions[static_cast<size_t>(i)];
            pairs += t + 1;
            const int64_t query = i / chunk * rows + i % chunk / block;
            for (int64_t u = 0; u <= t; u += block) blocks.insert({query, u / block});
          }
          CAPTURE(n, rows, block, c);
          CHECK(CausalPairs(n, rows) == static_cast<double>(pairs));
          const int64_t count = AttendedBlocks(n, rows, c, block);
          CHECK(count == static_cast<int64_t>(blocks.size()));
          least = std::min(least, count), most = std::max(most, count);
        }
        const int64_t block_row = (n * rows + block - 1) / block;
        CAPTURE(n, rows, block);
        CHECK(most - least <= block_row);
        CHECK(most - least <= (rows / 2 + block - 1) / block);
      }
    }
  }
}

TEST_CASE("the ranks' FLOPs of split attention are those of whole sequences") {
  for (int64_t n = 1; n <= 4; ++n) {
    const int64_t rows = 24, batch = 3, heads = 6, depth = 16;
    AttentionOp<Shape> op;
    op.rows = ZigzagRows(n, rows, Axis::kContext);
    op.q = {DenseLayout(DType::kF32, {batch, rows, heads, depth}), true};
    op.k = op.v = {DenseLayout(DType::kF32, {n * batch, rows, 2, depth}), true};
    const double length = static_cast<double>(n * rows);
    const double whole = 4.0 * batch * heads * depth * length * (length + 1) / 2;
    CHECK(static_cast<double>(n) * Flops(op) == whole);
  }
}

}  // namespace
}  // namespace millrace
