// Quantize and products of FP8. Payloads and scales are exact, bit by bit: conversions of numbers
// are tested by themselves (float8_test.cc). Products are held to bounds.
#include "runtime/base/float8.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <utility>

#include "runtime/base/arithmetic.h"
#include "tests/kernels/contract/contract.h"
#include "tests/kernels/contract/float8_blocks.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

constexpr ScaledBlock kBlocks[] = {{kAll, kAll}, {1, 128}, {128, 1}, {128, 128}};

// How many blocks lie along a dim of n; one along an empty one.
int64_t Count(int64_t n, int64_t block) {
  return block == kAll || n == 0 ? 1 : (n + block - 1) / block;
}
// `more`: some that no block has.
TensorView NewScales(Memory& memory, int64_t rows, int64_t columns, ScaledBlock block,
                     Strides strides = Strides::kDense, bool more = false) {
  const auto count = [&](int64_t n, int64_t along) {
    return more && along == kScaleBlock ? RoundUp(Count(n, along), kScaleMultiple)
                                        : Count(n, along);
  };
  return memory.New(DType::kF32, {count(rows, block.rows), count(columns, block.columns)}, strides);
}
Strides PickStrides(Random& random) {
  constexpr Strides kAllStrides[] = {Strides::kDense, Strides::kPadded, Strides::kTransposed};
  return kAllStrides[Pick(random, 0, 2)];
}

float Finite(const TensorView& x, const Index& i) {
  const auto magnitude = static_cast<float>(std::abs(Get(x, i)));
  return std::isfinite(magnitude) ? magnitude : 0;
}

// What a form of op.x has to be; nothing where the form is absent.
struct Form {
  TensorView payload, scales;
};
Form FormOf(Memory& memory, const QuantizeOp<TensorView>& op, const TensorView& payload,
            const TensorView& scales, ScaledBlock block) {
  if (!payload) return {};
  const Form form{memory.NewLike(payload), memory.NewLike(scales)};
  ForEach(scales.layout, [&](const Index& i) { Set(form.scales, i, 0); });
  ForEach(op.x.layout, [&](const Index& i) {
    const Index at{i[0] / block.rows, i[1] / block.columns};
    Set(form.scales, at, std::max(static_cast<float>(Get(form.scales, at)), Finite(op.x, i)));
  });
  ForEach(scales.layout, [&](const Index& i) {
    Set(form.scales, i,
        ScaleFor(static_cast<float>(Get(form.scales, i)), LargestOf(payload.dtype()),
                 op.scale_rounding));
  });
  ForEach(payload.layout, [&](const Index& i) {
    Set(form.payload, i,
        static_cast<float>(Get(op.x, i)) /
            static_cast<float>(ScaleOf(form.scales, block, i[0], i[1])));
  });
  return form;
}

struct QuantizeSizes {
  int64_t rows, columns;
};

// Each block has a magnitude of its own, from the least floats to the largest; some are zeros.
void FillBlocks(Random& random, const TensorView& x, ScaledBlock block) {
  std::map<std::pair<int64_t, int64_t>, double> sizes;
  ForEach(x.layout, [&](const Index& i) {
    const auto [at, fresh] = sizes.try_emplace({i[0] / block.rows, i[1] / block.columns});
    if (fresh)
      at->second =
          Pick(random, 0, 9) == 0 ? 0 : std::ldexp(1.0, static_cast<int>(Pick(random, -140, 127)));
    const double unit = std::uniform_real_distribution<double>(-1.9, 1.9)(random);
    Set(x, i, std::clamp(unit * at->second, -3.38e38, 3.38e38));
  });
}

void QuantizeCase(const Subject& subject, Random& random, QuantizeSizes s, ScaledBlock block) {
  Memory memory;
  QuantizeOp<TensorView> op{};
  op.scale_rounding = Flip(random) ? ScaleRounding::kExact : ScaleRounding::kPowerOfTwo;
  const DType dtype = Flip(random) ? DType::kE4M3 : DType::kE5M2;
  op.x = memory.New(PickFloat(random), {s.rows, s.columns}, PickRowStrides(random));
  FillBlocks(random, op.x, block);
  op.out = memory.New(dtype, {s.rows, s.columns}, PickStrides(random));
  op.scales = NewScales(memory, s.rows, s.columns, block, PickStrides(random), Flip(random));
  // The other form has blocks across, or the same scale.
  const bool shared = block.rows == kAll || (block.rows == block.columns && Flip(random));
  const ScaledBlock other = shared ? block : ScaledBlock{block.columns, block.rows};
  if (Flip(random)) {
    op.turned = memory.New(dtype, {s.rows, s.columns}, PickStrides(random));
    if (!shared)
      op.turned_scales =
          NewScales(memory, s.rows, s.columns, other, PickStrides(random), Flip(random));
  }
  // Infinities and NaNs enter no scale.
  for (int n = static_cast<int>(Pick(random, 0, 3)); n > 0 && op.x.numel() > 0; --n)
    Set(op.x, {Pick(random, 0, s.rows - 1), Pick(random, 0, s.columns - 1)},
        n == 1   ? NAN
        : n == 2 ? INFINITY
                 : -INFINITY);
  const Form form = FormOf(memory, op, op.out, op.scales, block),
             turned = FormOf(memory, op, op.turned, shared ? op.scales : op.turned_scales, other);
  REQUIRE(WhyUnsupported(ConvertOp<QuantizeOp, TensorView, Shape>(op, ShapeOf), subject.backend) ==
          "");
  Run(subject, memory, subject.table.quantize, op);
  INFO("quantize " << ToString(op.x.layout) << " by " << block.rows << " x " << block.columns
                   << " to " << ToString(op.out.layout));
  CHECK(SameBits(op.scales, form.scales));
  CHECK(SameBits(op.out, form.payload));
  if (!op.turned) return;
  CHECK(SameBits(op.turned, turned.payload));
  if (op.turned_scales) CHECK(SameBits(op.turned_scales, turned.scales));
}

struct Factors {
  TensorView payload, scales;
  ScaledBlock block;
};

// Random codes of numbers.
Factors NewFactor(Memory& memory, Random& random, int64_t rows, int64_t columns, ScaledBlock block,
                  bool powers) {
  const DType dtype = Flip(random) ? DType::kE4M3 : DType::kE5M2;
  Factors f{memory.New(dtype, {rows, columns}, PickStrides(random)),
            NewScales(memory, rows, columns, block), block};
  ForEach(f.payload.layout, [&](const Index& i) {
    Set(f.payload, i,
        std::ldexp(static_cast<double>(Pick(random, -8, 8)),
                   static_cast<int>(Pick(random, -9, 5))));
  });
  ForEach(f.scales.layout, [&](const Index& i) {
    Set(f.scales, i,
        powers ? std::ldexp(1.0, static_cast<int>(Pick(random, -4, 4)))
               : std::uniform_real_distribution<double>(0.01, 9)(random));
  });
  return f;
}

struct Sizes {
  int64_t m, n, k;
};

// Past a block, past a tile; no multiple of either.
constexpr Sizes kSizesOfProducts[] = {{0, 5, 3},      {5, 0, 3},     {5, 3, 0},       {1, 1, 1},
                                      {3, 130, 129},  {130, 3, 257}, {129, 140, 300}, {513, 9, 140},
                                      {7, 515, 2050}, {33, 65, 128}};

void ProductCase(const Subject& subject, Random& random, Sizes s, Scaling scaling, ScaledBlock a,
                 ScaledBlock b) {
  Memory memory;
  const bool powers = scaling == Scaling::kOperands;
  const Factors left = NewFactor(memory, random, s.m, s.k, a, powers),
                right = NewFactor(memory, random, s.k, s.n, b, powers);
  MatmulOp<TensorView> op{};
  op.scaling = scaling;
  op.a = left.payload, op.a_scales = left.scales, op.b = right.payload, op.b_scales = right.scales;
  op.update = PickUpdate(random);
  if (op.update == Update::kOverwrite && Flip(random)) {
    op.epilogue = Epilogue::kBias;
    op.bias = memory.NewRandom(random, PickFloat(random), {s.n});
  }
  op.out = memory.NewRandom(random, PickFloat(random), {s.m, s.n}, PickRowStrides(random));
  Reference reference;
  ForEach(op.out.layout, [&](const Index& i) {
    SumOf sum;
    for (int64_t k = 0; k < s.k; ++k)
      sum.Add(Get(op.a, i[0], k) * ScaleOf(op.a_scales, a, i[0], k) * Get(op.b, k, i[1]) *
              ScaleOf(op.b_scales, b, k, i[1]));
    if (op.bias) sum.Add(Get(op.bias, i[1]));
    if (op.update == Update::kAccumulate) sum.Add(Get(op.out, i));
    reference.push_back({sum.value, sum.bound(3)});  // 1 for the scaled product
  });
  Run(subject, memory, subject.table.matmul, op);
  INFO("scaling " << static_cast<int>(scaling) << ", " << s.m << " x " << s.n << " x " << s.k);
  CheckNear(op.out, reference, "matmul of FP8");
}

}  // namespace

void QuantizeContract(const Subject& subject) {
  Random random(31);
  constexpr QuantizeSizes kSpecial[] = {{0, 3},   {3, 0},     {1, 1},     {128, 128}, {129, 257},
                                        {5, 700}, {300, 130}, {127, 128}, {1, 129},   {130, 1}};
  for (const ScaledBlock block : kBlocks)
    for (int repeat = 0; repeat < 3; ++repeat)
      for (const QuantizeSizes s : kSpecial) QuantizeCase(subject, random, s, block);
}

void Float8AnyMatmulContract(const Subject& subject) {
  Random random(33);
  for (const Sizes s : kSizesOfProducts) {
    ProductCase(subject, random, s, Scaling::kProduct, {kAll, kAll}, {kAll, kAll});
    ProductCase(subject, random, s, Scaling::kOperands, {1, 128}, {128, 128});
    ProductCase(subject, random, s, Scaling::kOperands, {1, 128}, {128, 1});
  }
}

}  // namespace millrace::test
