#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {

void ExpertLoadContract(const Subject& subject) {
  Random random(71);
  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    const int64_t experts = repeat % 7 == 6 ? kMaxExperts : Pick(random, 1, 300);
    ExpertLoadOp<TensorView> op{};
    op.update = PickUpdate(random);
    op.offsets = memory.New(DType::kI32, {experts + 1});
    op.load = memory.New(DType::kF32, {experts});
    std::vector<double> want;
    double offset = static_cast<double>(Pick(random, 0, 3));
    for (int64_t e = 0; e < experts; ++e) {
      const auto load = static_cast<double>(repeat % 5 == 4 ? 0 : Pick(random, 0, 70000));
      Set(op.offsets, {e}, offset);
      Set(op.load, {e}, static_cast<double>(3 * e));
      want.push_back(load + (op.update == Update::kAccumulate ? static_cast<double>(3 * e) : 0));
      offset += load;
    }
    Set(op.offsets, {experts}, offset);
    Run(subject, memory, subject.table.expert_load, op);
    bool same = true;
    for (int64_t e = 0; e < experts; ++e) same &= Get(op.load, e) == want[static_cast<size_t>(e)];
    CHECK(same);
  }
}

namespace {

// Ranges of three shards' worth of elements; more of them than a launch takes.
std::shared_ptr<const std::vector<Range>> PickRanges(Random& random, int64_t n, bool many) {
  auto ranges = std::make_shared<std::vector<Range>>();
  for (int64_t begin = Pick(random, 0, 5); begin < 3 * n;) {
    const int64_t end = begin + Pick(random, 1, many ? 2 : n + 5);
    ranges->push_back({begin, end});
    begin = end + Pick(random, 1, many ? 2 : 30);
  }
  return ranges;
}

}  // namespace

// The mean is 7 experts' part of 3 * 7 pairs, or of 3 * 7 + 1: between two loads.
void RouterBiasContract(const Subject& subject) {
  Random random(72);
  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    const bool many = repeat % 8 == 7;
    const int64_t n = many ? 900 : repeat == 0 ? 0 : PickSize(random);
    StepScalars scalars = MakeScalars();
    scalars.applied = repeat % 4 != 3;
    RouterBiasOp<TensorView> op{};
    op.bias = memory.New(DType::kF32, {n});
    op.load = memory.New(DType::kF32, {n});
    op.scalars = memory.NewScalars(scalars);
    op.flat_begin = Pick(random, 0, 2) * n;
    op.ranges = PickRanges(random, n, many);
    op.rate = 0x1p-7;
    op.experts = 7;
    op.pairs = 3 * 7 + (Flip(random) ? 1 : 0);
    std::vector<double> want;
    for (int64_t i = 0; i < n; ++i) {
      const auto load = static_cast<double>(Pick(random, 0, 6)),
                 bias = static_cast<double>(Pick(random, -9, 9)) / 64;
      Set(op.load, {i}, load);
      Set(op.bias, {i}, bias);
      const int64_t at = op.flat_begin.value() + i;
      const bool moves = scalars.applied != 0 &&
                         std::any_of(op.ranges->begin(), op.ranges->end(), [&](const Range& range) {
                           return range.begin <= at && at < range.end;
                         });
      const double apart = static_cast<double>(op.pairs) / 7 - load;
      want.push_back(!moves || apart == 0 ? bias : bias + (apart > 0 ? 0x1p-7 : -0x1p-7));
    }
    Run(subject, memory, subject.table.router_bias, op);
    bool same = true;
    for (int64_t i = 0; i < n; ++i) same &= Get(op.bias, i) == want[static_cast<size_t>(i)];
    INFO(n << " elements, " << op.ranges->size() << " ranges");
    CHECK(same);
  }
}

}  // namespace millrace::test
