#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/contract/expert_load.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {

ExpertLoad PickLoad(Memory& memory, Random& random, int repeat) {
  ExpertLoad load{.experts = repeat % 5 == 0 ? 1 : Pick(random, 2, 9), .slots = 0, .offsets = {}};
  std::vector<int64_t> counts(static_cast<size_t>(load.experts), 0);
  const int64_t most = repeat % 7 == 3 ? 300 : 40;
  switch (repeat % 4) {
    case 0:  // any
      for (int64_t& count : counts) count = Pick(random, 0, most);
      break;
    case 1:  // one expert's
      counts[static_cast<size_t>(Pick(random, 0, load.experts - 1))] = Pick(random, 1, most);
      break;
    case 2:  // one each
      std::fill(counts.begin(), counts.end(), 1);
      break;
    case 3:  // few experts', one of them past a tile; on every other turn none at all
      if (Flip(random))
        for (size_t e = 0; e < counts.size(); e += 2) counts[e] = Pick(random, most / 2, 2 * most);
      break;
  }
  load.offsets = memory.New(DType::kI32, {load.experts + 1});
  int64_t sum = 0;
  for (int64_t e = 0; e <= load.experts; ++e) {
    Set(load.offsets, {e}, static_cast<double>(sum));
    if (e < load.experts) sum += counts[static_cast<size_t>(e)];
  }
  load.slots = sum + (Flip(random) ? 0 : Pick(random, 1, 50));
  return load;
}

void ExpertSlotsContract(const Subject& subject) {
  Random random(64);
  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    const int64_t rows = repeat % 8 == 7   ? 0
                         : repeat % 8 == 6 ? 900
                                           : PickSize(random),
                  top_k = Pick(random, 1, 8),
                  experts = repeat % 6 == 5 ? kMaxExperts : Pick(random, 1, 130);
    ExpertSlotsOp<TensorView> op{};
    // Few experts of many now and then: some have no slot.
    op.ids = memory.NewTokens(random, {rows, top_k}, repeat % 3 == 0 ? experts / 2 : 0, experts);
    op.offsets = memory.New(DType::kI32, {experts + 1});
    op.slots = memory.New(DType::kI32, {rows, top_k});
    op.pairs = memory.New(DType::kI32, {rows * top_k});
    std::vector<int64_t> order(static_cast<size_t>(rows * top_k));
    std::iota(order.begin(), order.end(), 0);
    const auto id = [&](int64_t pair) { return Get(op.ids, pair / top_k, pair % top_k); };
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return id(a) < id(b); });
    INFO(rows << " rows, " << top_k << " of " << experts);
    Run(subject, memory, subject.table.expert_slots, op);
    int64_t wrong = 0;
    for (size_t slot = 0; slot < order.size(); ++slot) {
      wrong += Get(op.pairs, static_cast<int64_t>(slot)) != static_cast<double>(order[slot]);
      wrong += Get(op.slots, order[slot] / top_k, order[slot] % top_k) != static_cast<double>(slot);
    }
    for (int64_t e = 0; e <= experts; ++e)
      wrong += Get(op.offsets, e) !=
               static_cast<double>(std::count_if(order.begin(), order.end(), [&](int64_t pair) {
                 return id(pair) < static_cast<double>(e);
               }));
    CHECK(wrong == 0);
  }
}

void DispatchContract(const Subject& subject) {
  Random random(65);
  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    const int64_t rows = repeat % 8 == 7 ? 0 : Pick(random, 1, 40), top_k = Pick(random, 1, 8),
                  columns = repeat % 5 == 0 ? Pick(random, 510, 1100) : PickSize(random),
                  pairs = rows * top_k, slots = pairs + (Flip(random) ? 0 : Pick(random, 1, 9));
    std::vector<int32_t> order(static_cast<size_t>(pairs));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    const TensorView of_slots = memory.New(DType::kI32, {slots}),
                     of_pairs = memory.New(DType::kI32, {rows, top_k}),
                     offsets = memory.New(DType::kI32, {2});
    Set(offsets, {0}, 0);
    Set(offsets, {1}, static_cast<double>(pairs));
    for (int64_t s = 0; s < pairs; ++s) {
      const int64_t pair = order[static_cast<size_t>(s)];
      Set(of_slots, {s}, static_cast<double>(pair));
      Set(of_pairs, {pair / top_k, pair % top_k}, static_cast<double>(s));
    }
    const bool weighted = Flip(random);

    DispatchOp<TensorView> dispatch{};
    dispatch.top_k = top_k;
    dispatch.x = memory.NewRandom(random, PickFloat(random), {rows, columns});
    dispatch.pairs = of_slots, dispatch.offsets = offsets;
    dispatch.out = memory.New(dispatch.x.dtype(), {slots, columns});
    if (weighted) {
      dispatch.weights = memory.NewRandom(random, DType::kF32, {rows, top_k});
      dispatch.slot_weights = memory.New(DType::kF32, {slots});
    }
    INFO(rows << " rows of " << columns << ", top_k " << top_k << ", " << slots << " slots");
    Run(subject, memory, subject.table.dispatch, dispatch);
    int64_t wrong = 0;
    for (int64_t s = 0; s < pairs; ++s) {
      const int64_t pair = order[static_cast<size_t>(s)];
      for (int64_t c = 0; c < columns; ++c)
        wrong += Get(dispatch.out, s, c) != Get(dispatch.x, pair / top_k, c);
      if (weighted)
        wrong += Get(dispatch.slot_weights, s) != Get(dispatch.weights, pair / top_k, pair % top_k);
    }
    CHECK(wrong == 0);

    // Without offsets every slot is written, zeros where there is no pair.
    dispatch.offsets = {};
    for (int64_t s = pairs; s < slots; ++s) Set(of_slots, {s}, -1);
    Run(subject, memory, subject.table.dispatch, dispatch);
    for (int64_t s = 0; s < slots; ++s) {
      const int64_t pair = s < pairs ? order[static_cast<size_t>(s)] : -1;
      for (int64_t c = 0; c < columns; ++c)
        wrong += Get(dispatch.out, s, c) != (pair < 0 ? 0 : Get(dispatch.x, pair / top_k, c));
      if (weighted)
        wrong += Get(dispatch.slot_weights, s) !=
                 (pair < 0 ? 0 : Get(dispatch.weights, pair / top_k, pair % top_k));
    }
    CHECK(wrong == 0);

    CombineOp<TensorView> combine{};
    combine.y = memory.NewRandom(random, PickFloat(random), {slots, columns});
    combine.slots = of_pairs;
    combine.out = memory.New(PickFloat(random), {rows, columns});
    if (weighted) {
      combine.slot_weights = memory.NewRandom(random, DType::kF32, {slots});
      combine.weights = memory.New(DType::kF32, {rows, top_k});
    }
    Run(subject, memory, subject.table.combine, combine);
    // In the order of k: the sum has these bits.
    const TensorView expected = memory.New(combine.out.dtype(), {rows, columns});
    ForEach(expected.layout, [&](const Index& i) {
      float sum = 0;
      for (int64_t k = 0; k < top_k; ++k)
        sum +=
            static_cast<float>(Get(combine.y, static_cast<int64_t>(Get(of_pairs, i[0], k)), i[1]));
      Set(expected, i, sum);
    });
    CHECK(SameBits(combine.out, expected));
    for (int64_t p = 0; p < pairs && weighted; ++p)
      wrong += Get(combine.weights, p / top_k, p % top_k) !=
               Get(combine.slot_weights, static_cast<int64_t>(Get(of_pairs, p / top_k, p % top_k)));
    CHECK(wrong == 0);
  }
}

}  // namespace millrace::test
