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

// Offsets where one expert has as many slots as in `load`, and no other has any.
TensorView OffsetsAlone(Memory& memory, const ExpertLoad& load, int64_t expert) {
  const TensorView offsets = memory.New(DType::kI32, {load.experts + 1});
  const int64_t slots = load.begin(expert + 1) - load.begin(expert);
  for (int64_t e = 0; e <= load.experts; ++e)
    Set(offsets, {e}, e <= expert ? 0.0 : static_cast<double>(slots));
  return offsets;
}
// Rows [begin, end) as an operand of their own.
TensorView Rows(Memory& memory, TensorView view, int64_t begin, int64_t end) {
  view.data = AddressOf(view, {begin});
  view.layout.dims[0] = end - begin;
  return memory.Clone(view);
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

void GroupedAloneContract(const Subject& subject) {
  Random random(64);
  for (int repeat = 0; repeat < 20; ++repeat) {
    Memory memory;
    const ExpertLoad load = PickLoad(memory, random, repeat);
    const auto [n, k] = PickSizes(random, repeat);
    const DType dtype = PickOperands(random, {n, k});
    const int64_t expert = Pick(random, 0, load.experts - 1);
    const int64_t begin = load.begin(expert), end = load.begin(expert + 1);
    INFO("expert " << expert << " of " << load.Text() << ", " << k << " -> " << n << ", "
                   << Name(dtype));
    GroupedMatmulOp<TensorView> product{};
    product.offsets = load.offsets;
    product.a = memory.NewRandom(random, dtype, {load.slots, k});
    product.b = SwapLastTwo(memory.NewRandom(random, dtype, {load.experts, n, k}));
    product.out = memory.New(PickFloat(random), {load.slots, n});
    GroupedMatmulOp<TensorView> alone = product;
    alone.offsets = OffsetsAlone(memory, load, expert);
    alone.a = Rows(memory, product.a, begin, end);
    alone.out = memory.New(product.out.dtype(), {end - begin, n});
    Run(subject, memory, subject.table.grouped_matmul, product);
    Run(subject, memory, subject.table.grouped_matmul, alone);
    CHECK(SameBits(alone.out, Rows(memory, product.out, begin, end)));

    GroupedWeightGradOp<TensorView> grad{};
    grad.offsets = load.offsets;
    grad.d_out = memory.NewRandom(random, dtype, {load.slots, n});
    grad.a = product.a;
    grad.out = memory.New(PickFloat(random), {load.experts, n, k});
    GroupedWeightGradOp<TensorView> grad_alone = grad;
    grad_alone.offsets = alone.offsets;
    grad_alone.d_out = Rows(memory, grad.d_out, begin, end);
    grad_alone.a = alone.a;
    grad_alone.out = memory.New(grad.out.dtype(), {load.experts, n, k});
    Run(subject, memory, subject.table.grouped_weight_grad, grad);
    Run(subject, memory, subject.table.grouped_weight_grad, grad_alone);
    CHECK(SameBits(Rows(memory, grad_alone.out, expert, expert + 1),
                   Rows(memory, grad.out, expert, expert + 1)));
  }
}

}  // namespace millrace::test
