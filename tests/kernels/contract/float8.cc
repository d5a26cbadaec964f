// Quantize and products of FP8. Payloads and scales are exact, bit by bit: conversions of numbers
// are tested by themselves (float8_test.cc). Products are held to bounds.
#include "runtime/base/float8.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <utility>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

// Rows and columns of a block.
struct Block {
  int64_t rows, columns;
};
constexpr int64_t kAll = int64_t{1} << 40;
constexpr Block kBlocks[] = {{kAll, kAll}, {1, 128}, {128, 1}, {128, 128}};

// How many blocks lie along a dim of n; one along an empty one.
int64_t Count(int64_t n, int64_t block) {
  return block == kAll || n == 0 ? 1 : (n + block - 1) / block;
}
TensorView NewScales(Memory& memory, int64_t rows, int64_t columns, Block block,
                     Strides strides = Strides::kDense) {
  return memory.New(DType::kF32, {Count(rows, block.rows), Count(columns, block.columns)}, strides);
}
double ScaleOf(const TensorView& scales, Block block, int64_t row, int64_t column) {
  return Get(scales, row / block.rows, column / block.columns);
}

float Finite(const TensorView& x, const Index& i) {
  const auto magnitude = static_cast<float>(std::abs(Get(x, i)));
  return std::isfinite(magnitude) ? magnitude : 0;
}

float ScaleFor(float most, float largest, ScaleRounding rounding) {
  if (most == 0) return 1;
  const float exact = most / largest;
  float power = 0x1p-117f;
  while (power < exact) power *= 2;
  return rounding == ScaleRounding::kPowerOfTwo ? power : std::max(exact, 0x1p-117f);
}

struct QuantizeSizes {
  int64_t rows, columns;
};

// Each block has a magnitude of its own, from the least floats to the largest; some are zeros.
void FillBlocks(Random& random, const TensorView& x, Block block) {
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

void QuantizeCase(const Subject& subject, Random& random, QuantizeSizes s, Block block) {
  Memory memory;
  QuantizeOp<TensorView> op{};
  op.scale_rounding = Flip(random) ? ScaleRounding::kExact : ScaleRounding::kPowerOfTwo;
  const DType dtype = Flip(random) ? DType::kE4M3 : DType::kE5M2;
  op.x = memory.New(PickFloat(random), {s.rows, s.columns}, PickRowStrides(random));
  FillBlocks(random, op.x, block);
  op.out = memory.New(dtype, {s.rows, s.columns}, PickRowStrides(random));
  op.scales = NewScales(memory, s.rows, s.columns, block, PickRowStrides(random));
  // Infinities and NaNs enter no scale.
  for (int n = static_cast<int>(Pick(random, 0, 3)); n > 0 && op.x.numel() > 0; --n)
    Set(op.x, {Pick(random, 0, s.rows - 1), Pick(random, 0, s.columns - 1)},
        n == 1   ? NAN
        : n == 2 ? INFINITY
                 : -INFINITY);
  const TensorView scales = memory.NewLike(op.scales), out = memory.NewLike(op.out);
  ForEach(scales.layout, [&](const Index& i) { Set(scales, i, 0); });
  ForEach(op.x.layout, [&](const Index& i) {
    const Index at{i[0] / block.rows, i[1] / block.columns};
    Set(scales, at, std::max(static_cast<float>(Get(scales, at)), Finite(op.x, i)));
  });
  ForEach(scales.layout, [&](const Index& i) {
    Set(scales, i,
        ScaleFor(static_cast<float>(Get(scales, i)), LargestOf(dtype), op.scale_rounding));
  });
  ForEach(out.layout, [&](const Index& i) {
    Set(out, i,
        static_cast<float>(Get(op.x, i)) / static_cast<float>(ScaleOf(scales, block, i[0], i[1])));
  });
  Run(subject, memory, subject.table.quantize, op);
  INFO("quantize " << ToString(op.x.layout) << " by " << block.rows << " x " << block.columns);
  CHECK(SameBits(op.scales, scales));
  CHECK(SameBits(op.out, out));
}

struct Factors {
  TensorView payload, scales;
  Block block;
};

// Random codes of numbers.
Factors NewFactor(Memory& memory, Random& random, int64_t rows, int64_t columns, Block block,
                  bool powers) {
  const DType dtype = Flip(random) ? DType::kE4M3 : DType::kE5M2;
  constexpr Strides kAll3[] = {Strides::kDense, Strides::kPadded, Strides::kTransposed};
  Factors f{memory.New(dtype, {rows, columns}, kAll3[Pick(random, 0, 2)]),
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

void ProductCase(const Subject& subject, Random& random, Sizes s, Scaling scaling, Block a,
                 Block b) {
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

// Rows that a NaN enters are NaN, and no others.
void NanCase(const Subject& subject, Random& random, Scaling scaling) {
  Memory memory;
  const int64_t m = 5, n = 4, k = 150, row = Pick(random, 0, m - 1);
  const Block a = scaling == Scaling::kProduct ? Block{kAll, kAll} : Block{1, 128},
              b = scaling == Scaling::kProduct ? Block{kAll, kAll} : Block{128, 128};
  QuantizeOp<TensorView> quantize{};
  quantize.x = memory.NewRandom(random, DType::kF32, {m, k});
  Set(quantize.x, {row, Pick(random, 0, k - 1)}, Flip(random) ? NAN : INFINITY);
  quantize.out = memory.New(DType::kE4M3, {m, k});
  quantize.scales = NewScales(memory, m, k, a);
  Run(subject, memory, subject.table.quantize, quantize);
  const Factors right = NewFactor(memory, random, k, n, b, true);
  MatmulOp<TensorView> op{};
  op.scaling = scaling;
  op.a = quantize.out, op.a_scales = quantize.scales;
  op.b = right.payload, op.b_scales = right.scales;
  op.out = memory.New(DType::kF32, {m, n});
  Run(subject, memory, subject.table.matmul, op);
  ForEach(op.out.layout, [&](const Index& i) {
    CAPTURE(i[0], row);
    CHECK(std::isnan(Get(op.out, i)) == (i[0] == row));
  });
}

}  // namespace

void QuantizeContract(const Subject& subject) {
  Random random(31);
  constexpr QuantizeSizes kSpecial[] = {{0, 3},   {3, 0},     {1, 1},     {128, 128}, {129, 257},
                                        {5, 700}, {300, 130}, {127, 128}, {1, 129},   {130, 1}};
  for (const Block block : kBlocks)
    for (int repeat = 0; repeat < 3; ++repeat)
      for (const QuantizeSizes s : kSpecial) QuantizeCase(subject, random, s, block);
}

void Float8MatmulContract(const Subject& subject) {
  Random random(32);
  for (const Sizes s : kSizesOfProducts) {
    ProductCase(subject, random, s, Scaling::kProduct, {kAll, kAll}, {kAll, kAll});
    ProductCase(subject, random, s, Scaling::kOperands, {1, 128}, {128, 128});
    ProductCase(subject, random, s, Scaling::kOperands, {1, 128}, {128, 1});
  }
  for (int repeat = 0; repeat < 8; ++repeat)
    NanCase(subject, random, Flip(random) ? Scaling::kProduct : Scaling::kOperands);
}

}  // namespace millrace::test
