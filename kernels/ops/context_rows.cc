#include "kernels/ops/context_rows.h"

#include <algorithm>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"

namespace millrace {

ContextRows ZigzagRows(int64_t n, int64_t rows_per_rank, AxisSet axes) {
  if (n == 1) return {};
  MR_CHECK(rows_per_rank % 2 == 0, "{} rows of a sequence on each of {} ranks are not two chunks",
           rows_per_rank, n);
  const int64_t chunk = rows_per_rank / 2;
  return {.ranks = n,
          .first = RankInt(0, chunk, axes),
          .second = RankInt((2 * n - 1) * chunk, -chunk, axes)};
}

std::array<int64_t, 2> ChunkStarts(const ContextRows& rows, int64_t rows_per_rank) {
  if (!rows.split()) return {0, 0};
  const int64_t chunk = rows_per_rank / 2, length = rows.ranks * rows_per_rank;
  MR_CHECK(rows_per_rank % 2 == 0, "{} rows of a sequence are not two chunks", rows_per_rank);
  const std::array<int64_t, 2> starts = {rows.first.value(), rows.second.value()};
  for (const int64_t start : starts)
    MR_CHECK(start >= 0 && start + chunk <= length && (chunk == 0 || start % chunk == 0),
             "no chunk of {} rows of a sequence of {} begins at {}", chunk, length, start);
  MR_CHECK(chunk == 0 || starts[0] != starts[1], "both chunks of a rank are the same one, at {}",
           starts[0]);
  return starts;
}

double CausalPairs(int64_t n, int64_t rows_per_rank) {
  const double rows = static_cast<double>(rows_per_rank), chunk = rows / 2;
  if (n == 1) return rows * (rows + 1) / 2;
  return static_cast<double>(2 * n - 1) * chunk * chunk + chunk * (chunk + 1);
}

int64_t AttendedBlocks(int64_t n, int64_t rows_per_rank, int64_t c, int64_t block) {
  const int64_t chunk = n == 1 ? rows_per_rank : rows_per_rank / 2;
  int64_t blocks = 0;
  for (const int64_t start : {c * chunk, (2 * n - 1 - c) * chunk}) {
    for (int64_t end = 0; end < chunk;) {
      end = std::min(end + block, chunk);
      blocks += CeilDiv(start + end, block);
    }
    if (n == 1) break;
  }
  return blocks;
}

}  // namespace millrace
