#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "tests/kernels/contract/contract.h"

namespace millrace::test {
namespace {

// Rows per rank and expert: any, all for one expert, all for one rank, none; `most` to a rank.
std::vector<std::vector<int64_t>> PickCounts(Random& random, int64_t ranks, int64_t experts,
                                             int64_t most, int repeat) {
  std::vector<std::vector<int64_t>> counts(static_cast<size_t>(ranks),
                                           std::vector<int64_t>(static_cast<size_t>(experts)));
  const int64_t rank = Pick(random, 0, ranks - 1), expert = Pick(random, 0, experts - 1);
  for (int64_t p = 0; p < ranks; ++p) {
    int64_t left = most;
    for (int64_t e = 0; e < experts; ++e) {
      int64_t& count = counts[static_cast<size_t>(p)][static_cast<size_t>(e)];
      if (repeat % 4 == 0) count = Pick(random, 0, left);
      if (repeat % 4 == 1 && e == expert) count = left;
      if (repeat % 4 == 2 && p == rank) count = e + 1 == experts ? left : Pick(random, 0, left);
      left -= count;
    }
  }
  return counts;
}

int64_t Sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

struct Sizes {
  int64_t ranks, experts, rows;
};
Sizes PickSizes(Random& random, int repeat) {
  Sizes s{.ranks = Pick(random, 1, 8), .experts = Pick(random, 1, 17), .rows = 0};
  if (repeat % 9 == 4) s = {.ranks = 8, .experts = 128, .rows = 0};
  if (repeat % 9 == 5) s = {.ranks = 1, .experts = 1024, .rows = 0};
  s.rows = repeat % 8 == 7 ? 0 : repeat % 8 == 6 ? Pick(random, 4000, 9000) : Pick(random, 1, 90);
  return s;
}

}  // namespace

void ExpertPiecesContract(const Subject& subject) {
  Random random(66);
  for (int repeat = 0; repeat < 60; ++repeat) {
    Memory memory;
    const auto [ranks, experts, most] = PickSizes(random, repeat);
    const auto counts = PickCounts(random, ranks, experts, most, repeat);
    // Room for all, or for less than may come.
    const bool bounded = repeat % 3 == 2;
    const int64_t rows = bounded ? Pick(random, 1, std::max<int64_t>(most, 1)) : most;
    int64_t pairs = 0;
    for (const std::vector<int64_t>& of_rank : counts) pairs += Sum(of_rank);
    std::vector<int32_t> order(static_cast<size_t>(pairs));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    ExpertPiecesOp<TensorView> op{};
    op.offsets = memory.New(DType::kI32, {ranks * experts + 1});
    op.pairs = memory.New(DType::kI32, {pairs});
    op.piece_pairs = memory.New(DType::kI32, {ranks * rows});
    op.piece_slots = memory.New(DType::kI32, {pairs, 1});
    op.counts = memory.New(DType::kI32, {ranks, experts});
    if (bounded) {
      op.update = PickUpdate(random);
      op.dropped = memory.New(DType::kF32, {1});
      Set(op.dropped, {}, 5);
    }
    for (int64_t i = 0; i < pairs; ++i)
      Set(op.pairs, {i}, static_cast<double>(order[static_cast<size_t>(i)]));
    int64_t offset = 0;
    for (int64_t e = 0; e <= ranks * experts; ++e) {
      Set(op.offsets, {e}, static_cast<double>(offset));
      if (e < ranks * experts)
        offset += counts[static_cast<size_t>(e / experts)][static_cast<size_t>(e % experts)];
    }
    INFO(ranks << " ranks with " << experts << " experts, pieces of " << rows << " rows, " << most
               << " at most");
    Run(subject, memory, subject.table.expert_pieces, op);
    int64_t wrong = 0, next = 0, dropped = 0;
    for (int64_t p = 0; p < ranks; ++p) {
      const int64_t wanted = Sum(counts[static_cast<size_t>(p)]), live = std::min(wanted, rows);
      for (int64_t i = 0; i < std::max(wanted, rows); ++i) {
        const int64_t pair = i < wanted ? order[static_cast<size_t>(next++)] : -1;
        if (i < rows)
          wrong += Get(op.piece_pairs, p * rows + i) != static_cast<double>(i < live ? pair : -1);
        if (pair >= 0)
          wrong +=
              Get(op.piece_slots, pair, 0) != static_cast<double>(p * rows + std::min(i, rows - 1));
      }
      dropped += wanted - live;
      int64_t left = live;  // rows of the piece for experts from e on
      for (int64_t e = 0; e < experts; ++e) {
        const int64_t count =
            std::min(left, counts[static_cast<size_t>(p)][static_cast<size_t>(e)]);
        wrong += Get(op.counts, p, e) != static_cast<double>(count);
        left -= count;
      }
    }
    CHECK(next == pairs);
    CHECK(wrong == 0);
    if (!bounded) continue;
    CHECK(Get(op.dropped) ==
          static_cast<double>(dropped + (op.update == Update::kAccumulate ? 5 : 0)));
  }
}

void ReceivedSlotsContract(const Subject& subject) {
  Random random(67);
  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    const auto [ranks, experts, rows] = PickSizes(random, repeat);
    const auto counts = PickCounts(random, ranks, experts, rows, repeat);
    ReceivedSlotsOp<TensorView> op{};
    op.counts = memory.New(DType::kI32, {ranks, experts});
    op.offsets = memory.New(DType::kI32, {experts + 1});
    op.slots = memory.New(DType::kI32, {ranks * rows, 1});
    op.rows = memory.New(DType::kI32, {ranks * rows});
    // Each received row with its expert; sorted by that, ranks and rows keep their order.
    std::vector<std::pair<int64_t, int64_t>> live;
    std::vector<int64_t> slot_of(static_cast<size_t>(ranks * rows), -1);
    for (int64_t q = 0; q < ranks; ++q) {
      int64_t row = q * rows;
      for (int64_t e = 0; e < experts; ++e) {
        const int64_t count = counts[static_cast<size_t>(q)][static_cast<size_t>(e)];
        Set(op.counts, {q, e}, static_cast<double>(count));
        for (int64_t i = 0; i < count; ++i) live.emplace_back(e, row++);
      }
    }
    std::stable_sort(live.begin(), live.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    INFO(ranks << " ranks for " << experts << " experts, pieces of " << rows << " rows");
    Run(subject, memory, subject.table.received_slots, op);
    int64_t wrong = 0;
    for (size_t s = 0; s < slot_of.size(); ++s) {
      const int64_t row = s < live.size() ? live[s].second : -1;
      wrong += Get(op.rows, static_cast<int64_t>(s)) != static_cast<double>(row);
      if (row >= 0) slot_of[static_cast<size_t>(row)] = static_cast<int64_t>(s);
    }
    for (size_t j = 0; j < slot_of.size(); ++j)
      wrong += Get(op.slots, static_cast<int64_t>(j), 0) != static_cast<double>(slot_of[j]);
    for (int64_t e = 0; e <= experts; ++e)
      wrong += Get(op.offsets, e) !=
               static_cast<double>(std::count_if(live.begin(), live.end(),
                                                 [&](const auto& row) { return row.first < e; }));
    CHECK(wrong == 0);
  }
}

}  // namespace millrace::test
