#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/contract/expert_load.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

TensorView SwapLastTwo(TensorView view) {
  std::swap(view.layout.dims[1], view.layout.dims[2]);
  std::swap(view.layout.strides[1], view.layout.strides[2]);
  return view;
}

struct Sizes {
  int64_t n, k;
};
Sizes PickSizes(Random& random, int repeat) {
  // Past one tile in each direction; multiples of eight, which a GPU's tensor cores take, with and
  // without a part of a tile.
  constexpr Sizes kSpecial[] = {{513, 9},   {7, 530},   {129, 65}, {256, 128}, {1, 1},
                                {64, 2100}, {136, 200}, {8, 72},   {264, 64},  {200, 328}};
  if (repeat < static_cast<int>(std::size(kSpecial))) return kSpecial[repeat];
  return {PickSize(random), PickSize(random)};
}

// Tensor cores see most of the sizes that they take.
DType PickOperands(Random& random, const Sizes& s) {
  const bool aligned = s.n % 8 == 0 && s.k % 8 == 0;
  return aligned && Pick(random, 0, 3) > 0 ? DType::kBF16 : PickFloat(random);
}

}  // namespace

void GroupedMatmulContract(const Subject& subject) {
  Random random(62);
  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    const ExpertLoad load = PickLoad(memory, random, repeat);
    const auto [n, k] = PickSizes(random, repeat);
    const DType dtype = PickOperands(random, {n, k});
    const bool transposed = Flip(random);
    GroupedMatmulOp<TensorView> op{};
    op.offsets = load.offsets;
    op.a = memory.NewRandom(random, dtype, {load.slots, k});
    op.b = memory.NewRandom(random, dtype, {load.experts, transposed ? n : k, transposed ? k : n});
    if (transposed) op.b = SwapLastTwo(op.b);
    op.out = memory.New(PickFloat(random), {load.slots, n});
    Reference reference;
    const TensorView live = FirstRows(op.out, load.live());
    ForEach(live.layout, [&](const Index& i) {
      SumOf sum;
      const int64_t e = load.ExpertOf(i[0]);
      for (int64_t j = 0; j < k; ++j) sum.Add(Get(op.a, i[0], j) * Get(op.b, e, j, i[1]));
      reference.push_back({sum.value, sum.bound(2)});
    });
    INFO(load.Text() << ", " << k << " -> " << n << ", " << Name(dtype)
                     << (transposed ? ", transposed" : ""));
    Run(subject, memory, subject.table.grouped_matmul, op);
    CheckNear(live, reference, "grouped_matmul");
  }
}

void GroupedWeightGradContract(const Subject& subject) {
  Random random(63);
  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    const ExpertLoad load = PickLoad(memory, random, repeat);
    const auto [n, k] = PickSizes(random, repeat);
    const DType dtype = PickOperands(random, {n, k});
    GroupedWeightGradOp<TensorView> op{};
    op.offsets = load.offsets;
    op.update = PickUpdate(random);
    op.d_out = memory.NewRandom(random, dtype, {load.slots, n});
    op.a = memory.NewRandom(random, dtype, {load.slots, k});
    op.out = memory.NewRandom(random, PickFloat(random), {load.experts, n, k});
    Reference reference;
    ForEach(op.out.layout, [&](const Index& i) {
      SumOf sum;
      for (int64_t s = load.begin(i[0]); s < load.begin(i[0] + 1); ++s)
        sum.Add(Get(op.d_out, s, i[1]) * Get(op.a, s, i[2]));
      if (op.update == Update::kAccumulate) sum.Add(Get(op.out, i));
      reference.push_back({sum.value, sum.bound(2)});
    });
    INFO(load.Text() << ", " << k << " -> " << n << ", " << Name(dtype));
    GroupedWeightGradOp<TensorView> fresh = op;
    fresh.update = Update::kOverwrite;
    fresh.out = memory.New(DType::kF32, {load.experts, n, k});
    const TensorView expected = memory.Clone(op.out);
    Run(subject, memory, subject.table.grouped_weight_grad, fresh);
    Run(subject, memory, subject.table.grouped_weight_grad, op);
    CheckNear(op.out, reference, "grouped_weight_grad");
    ForEach(expected.layout, [&](const Index& i) {
      const float sum = static_cast<float>(Get(fresh.out, i));
      Set(expected, i,
          op.update == Update::kAccumulate ? static_cast<float>(Get(expected, i)) + sum : sum);
    });
    INFO("one rounding of (old +) the f32 sum");
    CHECK(SameBits(op.out, expected));
  }
}

}  // namespace millrace::test
