// Which rows of a sequence a rank has when sequences are split over the n ranks of a context group,
// and where the gathered rows of a sequence lie.
//
// A sequence of T rows is 2n chunks of S = T / 2n rows. Rank c has chunk c and chunk 2n-1-c, in
// this order ("zigzag"): under a causal mask chunk j sees j*S + S*(S+1)/2 pairs per S queries, so
// every rank has the same number of them, (2n-1)*S^2 + S*(S+1). Its rows of B sequences are
// [B, T/n]; gathered over the group, rank by rank, they are [n*B, T/n]: no copy puts them in order,
// a reader finds position t by PlaceOf.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/base/mesh.h"

namespace millrace {

// Attributes of an op that reads or writes a rank's rows [B, T/n, ...].
struct ContextRows {
  int64_t ranks = 1;  // n; 1: rows are whole sequences, and the starts below are not used
  // Position in the sequence of the first row of each half: c*S and (2n-1-c)*S.
  RankInt first, second;

  bool split() const { return ranks > 1; }
  bool operator==(const ContextRows&) const = default;

  template <class Self, class F>
  static void VisitRankInts(Self& s, F&& f) {
    if (!s.split()) return;
    f(s.first, "first");
    f(s.second, "second");
  }
};

// Of the ranks of a group over `axes`, n of them, with rows_per_rank = T/n rows of each sequence.
// Whole sequences for n = 1. Error(kInternal) when T/n is odd and n > 1.
ContextRows ZigzagRows(int64_t n, int64_t rows_per_rank, AxisSet axes);

// The first positions of both halves, bound; Error(kInternal) unless both are chunks' of sequences
// of n*rows_per_rank.
std::array<int64_t, 2> ChunkStarts(const ContextRows& rows, int64_t rows_per_rank);

// Position t of batch row b among gathered rows [n*B, T/n], as its two indices.
struct GatheredPlace {
  int64_t outer, row;
};
constexpr GatheredPlace PlaceOf(int64_t n, int64_t batch, int64_t rows_per_rank, int64_t b,
                                int64_t t) {
  if (n == 1) return {b, t};
  const int64_t chunk_rows = rows_per_rank / 2, chunk = t / chunk_rows, at = t % chunk_rows;
  if (chunk < n) return {chunk * batch + b, at};
  return {(2 * n - 1 - chunk) * batch + b, chunk_rows + at};
}

// The position in its sequence of a rank's row i, with these starts (ChunkStarts).
constexpr int64_t PositionOf(const std::array<int64_t, 2>& starts, int64_t n, int64_t rows_per_rank,
                             int64_t i) {
  if (n == 1) return i;
  const int64_t chunk = rows_per_rank / 2;
  return i < chunk ? starts[0] + i : starts[1] + i - chunk;
}

// Pairs (t, u <= t) of one sequence and head over a rank's rows t: the same on every rank.
double CausalPairs(int64_t n, int64_t rows_per_rank);

// Blocks of `block` queries by `block` keys with such a pair at the rank of place c; blocks of
// queries begin with their chunk, blocks of keys with the sequence. Over c they differ by at most
// one per block of a chunk's queries, so by less than a sequence's blocks of keys.
int64_t AttendedBlocks(int64_t n, int64_t rows_per_rank, int64_t c, int64_t block);

}  // namespace millrace
