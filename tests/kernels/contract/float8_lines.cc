// Products of FP8 as GPUs take them: all that is summed lies in lines.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/ops/cuda_float8.h"
#include "tests/kernels/contract/contract.h"
#include "tests/kernels/contract/float8_blocks.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

struct Sizes {
  int64_t m, n, k;
};

// Operands as GPUs take them: [lines, sum], all that is summed beside each other.
TensorView NewLines(Memory& memory, Random& random, DType dtype, int64_t lines, int64_t sum,
                    const std::function<double(Random&)>& value) {
  const TensorView payload = memory.New(dtype, {lines, sum});
  ForEach(payload.layout, [&](const Index& i) { Set(payload, i, value(random)); });
  return payload;
}
TensorView NewScalesInPlace(Memory& memory, KeyScales kind, int64_t lines, int64_t sum) {
  const Layout layout = cuda::ScalesInPlace(kind, lines, sum);
  if (layout.contiguous()) return memory.New(DType::kF32, {layout.dims[0], layout.dims[1]});
  return TransposedView(memory.New(DType::kF32, {layout.dims[1], layout.dims[0]}));
}
ScaledBlock BlockOf(KeyScales kind) {
  if (kind == KeyScales::kTensor) return {kAll, kAll};
  return {kind == KeyScales::kVectors ? 1 : kScaleBlock, kScaleBlock};
}

// Products of payloads and scales, row by row.
std::vector<double> ValuesOf(const TensorView& payload, const TensorView& scales, KeyScales kind) {
  std::vector<double> values;
  ForEach(payload.layout, [&](const Index& i) {
    values.push_back(Get(payload, i) * ScaleOf(scales, BlockOf(kind), i[0], i[1]));
  });
  return values;
}

struct LinesCase {
  Sizes sizes;
  KeyScales a, b;
  bool exact;
};

// Sums of 128 small integers are exact in the 14 bits that tensor cores of Hopper keep, and those
// of the next 128 are added in f32: what is wrong here is not rounding. 2,048 numbers that are
// seldom negative sum to more than 2^14: with the library's fast accumulation bits were lost.
double SmallInteger(Random& random) { return static_cast<double>(Pick(random, -2, 8)); }
double AnyNumber(Random& random) {
  return std::ldexp(static_cast<double>(Pick(random, -8, 8)),
                    static_cast<int>(Pick(random, -9, 5)));
}

// What tensor cores lose of 128 products, whose magnitudes sum to `magnitude`: four steps add 32
// products and the sum so far, each cut 13 bits below the largest of them.
double LostInTensorCores(const Subject& subject, bool exact, double magnitude) {
  if (exact || subject.backend == Backend::kCpu) return 0;
  return 4 * 33 * 0x1p-13 * magnitude;
}

struct Products {
  double sum = 0, magnitude = 0;
};

// ASan and UBSan do not look at its four billion products: their checks took a fifth of what all
// tests take under them.
[[gnu::no_sanitize_address, gnu::no_sanitize_undefined]] Products ProductsOf(const double* a,
                                                                             const double* b,
                                                                             int64_t count) {
  Products of;
  for (const double* const end = a + count; a != end; ++a, ++b) {
    const double term = *a * *b;
    of.sum += term, of.magnitude += std::abs(term);
  }
  return of;
}

void RunLinesCase(const Subject& subject, Random& random, const LinesCase& c) {
  Memory memory;
  const auto [m, n, k] = c.sizes;
  const bool powers = c.a != KeyScales::kTensor;
  const auto value = c.exact ? &SmallInteger : &AnyNumber;
  const DType any = Flip(random) ? DType::kE5M2 : DType::kE4M3;  // integers up to 8 are exact in it
  const bool of_a = Flip(random);
  const TensorView a = NewLines(memory, random, of_a ? any : DType::kE4M3, m, k, value),
                   b = NewLines(memory, random, of_a ? DType::kE4M3 : any, n, k, value);
  MatmulOp<TensorView> op{};
  op.scaling = powers ? Scaling::kOperands : Scaling::kProduct;
  op.a = a, op.a_scales = NewScalesInPlace(memory, c.a, m, k);
  const TensorView b_scales = NewScalesInPlace(memory, c.b, n, k);
  op.b = TransposedView(b), op.b_scales = TransposedView(b_scales);
  for (const TensorView& scales : {op.a_scales, b_scales})
    ForEach(scales.layout, [&](const Index& i) {
      Set(scales, i,
          powers ? std::ldexp(1.0, static_cast<int>(Pick(random, -4, 4)))
                 : std::uniform_real_distribution<double>(0.01, 9)(random));
    });
  op.update = PickUpdate(random);
  if (op.update == Update::kOverwrite && Flip(random)) {
    op.epilogue = Epilogue::kBias;
    op.bias = memory.NewRandom(random, PickFloat(random), {n});
  }
  op.out = memory.NewRandom(random, PickFloat(random), {m, n});
  REQUIRE(WhyUnsupported(ConvertOp<MatmulOp, TensorView, Shape>(op, ShapeOf), subject.backend) ==
          "");
  const std::vector<double> a_values = ValuesOf(a, op.a_scales, c.a),
                            b_values = ValuesOf(b, b_scales, c.b);
  REQUIRE((std::ssize(a_values) == m * k && std::ssize(b_values) == n * k));
  const bool rounds_before_bias =
      subject.backend == Backend::kCuda && op.bias && op.out.dtype() == DType::kBF16;
  // The CPU adds products with their scales one by one.
  const bool by_blocks = c.exact && subject.backend == Backend::kCuda;
  Reference reference;
  ForEach(op.out.layout, [&](const Index& i) {
    SumOf sum;  // of sums of 128
    double lost = 0;
    for (int64_t begin = 0; begin < k; begin += kScaleBlock) {
      const int64_t end = std::min(k, begin + kScaleBlock);
      const Products block = ProductsOf(a_values.data() + i[0] * k + begin,
                                        b_values.data() + i[1] * k + begin, end - begin);
      sum.Add(block.sum);
      lost += LostInTensorCores(subject, c.exact, block.magnitude);
      if (!by_blocks) sum.magnitude += block.magnitude, sum.terms += kScaleBlock;
    }
    const double product = std::abs(sum.value);
    if (op.bias) sum.Add(Get(op.bias, i[1]));
    if (op.update == Update::kAccumulate) sum.Add(Get(op.out, i));
    // Both scales and their product are rounded in f32.
    reference.push_back(
        {sum.value, sum.bound(5) + lost + (rounds_before_bias ? 0x1p-8 * (product + lost) : 0)});
  });
  Run(subject, memory, subject.table.matmul, op);
  INFO("scales " << Name(c.a) << " and " << Name(c.b) << ", " << m << " x " << n << " x " << k
                 << (c.exact ? ", exact" : "") << (op.bias ? ", bias" : "") << " into "
                 << Name(op.out.dtype()));
  CheckNear(op.out, reference, "matmul of FP8");
}

// An activation behind a product, or its gradient, has the bits of separate ops.
void EpilogueCase(const Subject& subject, Random& random, Epilogue epilogue, bool tensor) {
  Memory memory;
  const int64_t m = 48, n = 144, k = 272;
  const KeyScales of_a = tensor ? KeyScales::kTensor : KeyScales::kVectors,
                  of_b = tensor ? KeyScales::kTensor : KeyScales::kBlocks;
  const auto ones = [&](KeyScales kind, int64_t lines) {
    const TensorView scales = NewScalesInPlace(memory, kind, lines, k);
    ForEach(scales.layout, [&](const Index& i) { Set(scales, i, 0x1p-7); });
    return scales;
  };
  MatmulOp<TensorView> op{};
  op.scaling = tensor ? Scaling::kProduct : Scaling::kOperands;
  op.a = NewLines(memory, random, DType::kE4M3, m, k, &SmallInteger);
  op.b = TransposedView(NewLines(memory, random, DType::kE4M3, n, k, &SmallInteger));
  op.a_scales = ones(of_a, m), op.b_scales = TransposedView(ones(of_b, n));
  op.epilogue = epilogue;
  const DType result = PickFloat(random);
  op.out = memory.New(result, {m, n});
  if (epilogue == Epilogue::kBiasGelu) op.bias = memory.NewRandom(random, result, {n});
  op.pre = epilogue == Epilogue::kGeluGrad ? memory.NewRandom(random, result, {m, n})
                                           : memory.New(PickFloat(random), {m, n});
  Run(subject, memory, subject.table.matmul, op);
  MatmulOp<TensorView> product = op;
  product.epilogue = op.bias ? Epilogue::kBias : Epilogue::kNone;
  product.pre = {};
  const TensorView behind = memory.New(result, {m, n});
  if (epilogue == Epilogue::kGeluGrad) {
    product.out = memory.New(result, {m, n});
    Run(subject, memory, subject.table.matmul, product);
    ActivationGradOp<TensorView> grad{};
    grad.x = op.pre, grad.d_out = product.out, grad.d_x = behind;
    Run(subject, memory, subject.table.activation_grad, grad);
  } else {
    product.out = memory.NewLike(op.pre);
    Run(subject, memory, subject.table.matmul, product);
    CHECK(SameBits(op.pre, product.out));
    ActivationOp<TensorView> activation{{}, product.out, behind, {}};
    Run(subject, memory, subject.table.activation, activation);
  }
  CHECK(SameBits(op.out, behind));
}

// Rows that a NaN enters are NaN, and no others.
void NanCase(const Subject& subject, Random& random, Scaling scaling) {
  Memory memory;
  const int64_t m = 16, n = 32, k = 160, row = Pick(random, 0, m - 1);
  const bool tensor = scaling == Scaling::kProduct;
  const KeyScales a = tensor ? KeyScales::kTensor : KeyScales::kVectors,
                  b = tensor ? KeyScales::kTensor : KeyScales::kBlocks;
  QuantizeOp<TensorView> quantize{};
  quantize.x = memory.NewRandom(random, DType::kF32, {m, k});
  Set(quantize.x, {row, Pick(random, 0, k - 1)}, Flip(random) ? NAN : INFINITY);
  quantize.out = memory.New(DType::kE4M3, {m, k});
  quantize.scales = NewScalesInPlace(memory, a, m, k);
  Run(subject, memory, subject.table.quantize, quantize);
  const TensorView right = NewLines(memory, random, DType::kE4M3, n, k, &AnyNumber),
                   right_scales = NewScalesInPlace(memory, b, n, k);
  ForEach(right_scales.layout, [&](const Index& i) { Set(right_scales, i, 0.5); });
  MatmulOp<TensorView> op{};
  op.scaling = scaling;
  op.a = quantize.out, op.a_scales = quantize.scales;
  op.b = TransposedView(right), op.b_scales = TransposedView(right_scales);
  op.out = memory.New(DType::kF32, {m, n});
  Run(subject, memory, subject.table.matmul, op);
  ForEach(op.out.layout, [&](const Index& i) {
    CAPTURE(i[0], row);
    CHECK(std::isnan(Get(op.out, i)) == (i[0] == row));
  });
}

}  // namespace

void Float8MatmulContract(const Subject& subject) {
  Random random(32);
  using enum KeyScales;
  constexpr Sizes kByLines[] = {{16, 16, 16},   {16, 144, 128},  {144, 16, 256}, {128, 144, 304},
                                {512, 16, 144}, {16, 512, 2048}, {48, 64, 128},  {272, 400, 1056}};
  for (const Sizes s : kByLines)
    for (const bool exact : {true, false})
      for (const auto& [a, b] : {std::pair{kTensor, kTensor},
                                 {kVectors, kBlocks},
                                 {kBlocks, kVectors},
                                 {kVectors, kVectors}})
        for (int repeat = 0; repeat < 4; ++repeat) RunLinesCase(subject, random, {s, a, b, exact});
  for (int repeat = 0; repeat < 8; ++repeat) {
    NanCase(subject, random, Flip(random) ? Scaling::kProduct : Scaling::kOperands);
    for (const Epilogue epilogue : {Epilogue::kGelu, Epilogue::kBiasGelu, Epilogue::kGeluGrad})
      EpilogueCase(subject, random, epilogue, Flip(random));
  }
}

}  // namespace millrace::test
