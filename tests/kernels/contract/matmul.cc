#include <catch2/catch.hpp>
#include <cmath>
#include <numbers>
#include <utility>

#include "kernels/ops/matmul_key.h"
#include "tests/kernels/contract/contract.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

Strides PickMatrixStrides(Random& random) {
  constexpr Strides kAll[] = {Strides::kDense, Strides::kPadded, Strides::kTransposed};
  return kAll[Pick(random, 0, 2)];
}

// 0.5 x (1 + tanh(u)) without the cancellation for x << 0.
double GeluReference(double x) {
  return x / (1 + std::exp(-2 * std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

struct Sizes {
  int64_t m, n, k;
};

Sizes PickSizes(Random& random, int repeat) {
  // Past one tile in each direction, and empty in each.
  constexpr Sizes kSpecial[] = {{513, 9, 20}, {7, 600, 33}, {3, 5, 2100}, {515, 520, 3}, {0, 5, 3},
                                {5, 0, 3},    {5, 3, 0},    {1, 1, 1},    {514, 3, 2049}};
  if (repeat < static_cast<int>(std::size(kSpecial))) return kSpecial[repeat];
  return {PickSize(random), PickSize(random), PickSize(random)};
}

// Whether the backend may round the product to a result of 16 bits before it adds the bias
// (kernels/cuda/matmul/matmul.h).
bool MayRoundBeforeBias(const Subject& subject, const MatmulOp<TensorView>& op) {
  return subject.backend == Backend::kCuda && op.bias &&
         IsFloatOf16Bits((op.pre ? op.pre : op.out).dtype()) &&
         RouteOf(op) == MatmulRoute::kOneLaunch;
}

// Product and bias, before any activation.
Reference ProductOf(const Subject& subject, const MatmulOp<TensorView>& op) {
  const bool twice = MayRoundBeforeBias(subject, op),
             f16 = (op.pre ? op.pre : op.out).dtype() == DType::kF16;
  Reference reference;
  ForEach(op.out.layout, [&](const Index& i) {
    SumOf sum;
    for (int64_t k = 0; k < op.a.dim(1); ++k) sum.Add(Get(op.a, i[0], k) * Get(op.b, k, i[1]));
    const double product = std::abs(sum.value) + sum.bound(),
                 rounding = f16 ? 0x1p-11 * product + 0x1p-25 : 0x1p-8 * product;
    if (op.bias) sum.Add(Get(op.bias, i[1]));
    if (op.update == Update::kAccumulate) sum.Add(Get(op.out, i));
    reference.push_back({sum.value, sum.bound(2) + (twice ? rounding : 0)});
  });
  return reference;
}

std::string Refusal(const Subject& subject, const MatmulOp<TensorView>& op) {
  return WhyUnsupported(ConvertOp<MatmulOp, TensorView, Shape>(op, ShapeOf), subject.backend);
}

// Whether every dtype and stride of a result is the same product to the backend. A GEMM library
// chooses its algorithm, and with it the order of additions, by them.
bool OneProductForAllLayouts(const Subject& subject) { return subject.backend == Backend::kCpu; }

MatmulOp<TensorView> MakeMatmul(const Subject& subject, Memory& memory, Random& random, Sizes s) {
  MatmulOp<TensorView> op{};
  op.a = memory.NewRandom(random, PickFloat(random), {s.m, s.k}, PickMatrixStrides(random));
  // A backend may convert 16 bits piece by piece where K is long.
  const DType b_dtype = s.k > 2000 ? FloatOf16Bits() : PickFloat(random);
  op.b = memory.NewRandom(random, b_dtype, {s.k, s.n}, PickMatrixStrides(random));
  op.out = memory.NewRandom(random, PickFloat(random), {s.m, s.n}, PickMatrixStrides(random));
  if (op.a.dtype() != op.b.dtype() && !Refusal(subject, op).empty())  // operands of one dtype only
    op.b = memory.NewRandom(random, op.a.dtype(), {s.k, s.n}, PickMatrixStrides(random));
  return op;
}

// As a step that generates has: a few rows of 16 bits by a weight that lies by columns.
Sizes PickFewRows(Random& random) {
  return {Flip(random) ? Pick(random, 1, 5) : Pick(random, 6, 70), Pick(random, 1, 90),
          8 * Pick(random, 1, 90)};
}

MatmulOp<TensorView> MakeFewRows(Memory& memory, Random& random, Sizes s) {
  MatmulOp<TensorView> op{};
  op.a = memory.NewRandom(random, FloatOf16Bits(), {s.m, s.k}, Strides::kDense, 0.3);
  op.b = TransposedView(memory.NewRandom(random, FloatOf16Bits(), {s.n, s.k}));
  op.out = memory.NewRandom(random, PickFloat(random), {s.m, s.n}, PickRowStrides(random));
  return op;
}

}  // namespace

void MatmulContract(const Subject& subject) {
  Random random(20);
  for (int repeat = 0; repeat < 100; ++repeat) {
    Memory memory;
    const bool few = repeat >= 60;
    const Sizes s = few ? PickFewRows(random) : PickSizes(random, repeat);
    MatmulOp<TensorView> op =
        few ? MakeFewRows(memory, random, s) : MakeMatmul(subject, memory, random, s);
    constexpr Epilogue kEpilogues[] = {Epilogue::kNone, Epilogue::kBias, Epilogue::kBiasGelu,
                                       Epilogue::kGelu};
    op.epilogue = kEpilogues[repeat % 4];
    const bool activated = op.epilogue == Epilogue::kBiasGelu || op.epilogue == Epilogue::kGelu;
    if (op.epilogue == Epilogue::kBias || op.epilogue == Epilogue::kBiasGelu)
      op.bias = memory.NewRandom(random, PickFloat(random), {s.n});
    if (activated) op.pre = memory.New(PickFloat(random), {s.m, s.n}, PickRowStrides(random));
    if (activated && !Refusal(subject, op).empty())  // results by columns
      op.out = memory.New(op.out.dtype(), {s.m, s.n}, PickRowStrides(random));
    REQUIRE(Refusal(subject, op) == "");
    const Reference product = ProductOf(subject, op);
    Run(subject, memory, subject.table.matmul, op);
    if (!activated) {
      CheckNear(op.out, product, "matmul");
      continue;
    }
    CheckNear(op.pre, product, "pre");
    // Of the stored pre; e^z with z to 2u relative, so 4|z| u, and a few operations.
    Reference gelu;
    ForEach(op.pre.layout, [&](const Index& i) {
      const double x = Get(op.pre, i), value = GeluReference(x),
                   z = 1.6 * std::abs(x) + 0.072 * std::pow(std::abs(x), 3);
      gelu.push_back({value, (8 + 4 * z) * kU * std::abs(value)});
    });
    CheckNear(op.out, gelu, "gelu(pre)");

    // The epilogue gives the bits of separate ops.
    MatmulOp<TensorView> linear = op;
    linear.epilogue = op.epilogue == Epilogue::kBiasGelu ? Epilogue::kBias : Epilogue::kNone;
    linear.pre = {};
    linear.out = memory.NewLike(op.pre);
    ActivationOp<TensorView> activation{{}, linear.out, memory.New(op.out.dtype(), {s.m, s.n}), {}};
    Run(subject, memory, subject.table.matmul, linear);
    Run(subject, memory, subject.table.activation, activation);
    CHECK(SameBits(op.pre, linear.out));
    CHECK(SameBits(op.out, activation.out));
  }
}

// A product times GELU's derivative has the bits of a product and a gradient of GELU behind it, as
// long as a backend was not told (TuningTable) to leave both to a library.
void MatmulGeluGradContract(const Subject& subject) {
  Random random(22);
  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    const Sizes s = PickSizes(random, repeat);
    MatmulOp<TensorView> op = MakeMatmul(subject, memory, random, s);
    MatmulOp<TensorView> product = op;
    op.epilogue = Epilogue::kGeluGrad;
    op.pre = memory.NewRandom(random, PickFloat(random), {s.m, s.n}, PickRowStrides(random));
    if (!Refusal(subject, op).empty())
      op.out = memory.New(op.out.dtype(), {s.m, s.n}, PickRowStrides(random));
    REQUIRE(Refusal(subject, op) == "");
    const TensorView pre = memory.Clone(op.pre);
    Run(subject, memory, subject.table.matmul, op);
    CHECK(SameBits(op.pre, pre));

    product.out = memory.NewLike(op.out);
    ActivationGradOp<TensorView> grad{
        {ActivationKind::kGelu}, op.pre, product.out, memory.NewLike(op.out), {}};
    Run(subject, memory, subject.table.matmul, product);
    Run(subject, memory, subject.table.activation_grad, grad);
    INFO(s.m << " x " << s.n << " x " << s.k);
    CHECK(SameBits(op.out, grad.d_x));
  }
}

// A f32 temporary holds the product that an op which rounds once rounds or adds, bit for bit.
void MatmulUpdateContract(const Subject& subject) {
  Random random(21);
  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    const Sizes s = PickSizes(random, repeat);
    MatmulOp<TensorView> op = MakeMatmul(subject, memory, random, s);
    op.update = PickUpdate(random);
    op.rounding = Flip(random) ? Rounding::kOnce : Rounding::kBackend;
    REQUIRE(Refusal(subject, op) == "");
    const Reference reference = ProductOf(subject, op);
    const TensorView old = memory.Clone(op.out);
    const bool to_f32 = op.out.dtype() == DType::kF32;

    MatmulOp<TensorView> product = op;
    product.update = Update::kOverwrite;
    product.rounding = Rounding::kBackend;
    product.out = OneProductForAllLayouts(subject) || !to_f32 ? memory.New(DType::kF32, {s.m, s.n})
                                                              : memory.NewLike(op.out);
    Run(subject, memory, subject.table.matmul, product);
    Run(subject, memory, subject.table.matmul, op);
    CheckNear(op.out, reference, "matmul");

    if (OneProductForAllLayouts(subject) || to_f32 || op.rounds_once()) {
      const TensorView expected = memory.New(op.out.dtype(), {s.m, s.n});
      ForEach(expected.layout, [&](const Index& i) {
        const float value = static_cast<float>(Get(product.out, i));
        Set(expected, i,
            op.update == Update::kAccumulate ? static_cast<float>(Get(old, i)) + value : value);
      });
      INFO(s.m << " x " << s.n << " x " << s.k << ", one rounding of (old +) the f32 product");
      CHECK(SameBits(op.out, expected));
    }

    // Added to 0, the product is itself: one algorithm for both updates. (-0 + 0 is 0.)
    MatmulOp<TensorView> onto_zero = op;
    onto_zero.update = Update::kAccumulate;
    onto_zero.out = memory.NewLike(op.out);
    ForEach(op.out.layout, [&](const Index& i) { Set(onto_zero.out, i, 0); });
    Run(subject, memory, subject.table.matmul, onto_zero);
    const TensorView rounded = memory.New(op.out.dtype(), {s.m, s.n});
    ForEach(op.out.layout, [&](const Index& i) { Set(rounded, i, Get(product.out, i) + 0.0); });
    CHECK(SameBits(onto_zero.out, rounded));

    if (!OneProductForAllLayouts(subject)) continue;
    // Row strides do not change bits.
    MatmulOp<TensorView> padded = op;
    padded.update = Update::kOverwrite;
    const auto repad = [&](const TensorView& view) {
      TensorView copy = memory.New(view.dtype(), {view.dim(0), view.dim(1)}, Strides::kPadded);
      ForEach(view.layout, [&](const Index& i) { Set(copy, i, Get(view, i)); });
      return copy;
    };
    padded.a = repad(op.a), padded.b = repad(op.b);
    padded.out = memory.New(DType::kF32, {s.m, s.n}, Strides::kPadded);
    MatmulOp<TensorView> dense = padded;
    dense.a = memory.Clone(op.a), dense.b = memory.Clone(op.b);
    dense.out = memory.New(DType::kF32, {s.m, s.n});
    Run(subject, memory, subject.table.matmul, padded);
    Run(subject, memory, subject.table.matmul, dense);
    CHECK(SameBits(padded.out, dense.out));
  }
}

void ColumnSumContract(const Subject& subject) {
  Random random(22);
  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    const int64_t rows = repeat % 6 == 5 ? 0 : repeat % 6 == 4 ? 200 : PickSize(random);
    const int64_t columns = repeat % 5 == 0 ? Pick(random, 510, 1100) : PickSize(random);
    ColumnSumOp<TensorView> op{};
    op.update = PickUpdate(random);
    op.x = memory.NewRandom(random, PickFloat(random), {rows, columns}, PickRowStrides(random));
    op.out = memory.NewRandom(random, PickFloat(random), {columns});
    Reference reference;
    for (int64_t c = 0; c < columns; ++c) {
      SumOf sum;
      for (int64_t r = 0; r < rows; ++r) sum.Add(Get(op.x, r, c));
      if (op.update == Update::kAccumulate) sum.Add(Get(op.out, c));
      reference.push_back({sum.value, sum.bound()});
    }
    const TensorView old = memory.Clone(op.out), expected = memory.Clone(op.out);
    ColumnSumOp<TensorView> fresh = op;
    fresh.update = Update::kOverwrite;
    fresh.out = memory.New(DType::kF32, {columns});
    Run(subject, memory, subject.table.column_sum, fresh);
    Run(subject, memory, subject.table.column_sum, op);
    CheckNear(op.out, reference, "column sum");
    for (int64_t c = 0; c < columns; ++c) {
      const float sum = static_cast<float>(Get(fresh.out, c));
      Set(expected, {c},
          op.update == Update::kAccumulate ? static_cast<float>(Get(old, c)) + sum : sum);
    }
    CHECK(SameBits(op.out, expected));
  }
}

namespace {

// Matrices by rows or by columns, end to end or apart.
TensorView PickMatrices(Memory& memory, Random& random, DType dtype, int64_t count, int64_t rows,
                        int64_t cols, bool by_rows) {
  const bool turned = !by_rows && Flip(random);
  const int64_t lines = turned ? cols : rows, length = turned ? rows : cols,
                apart = lines * length + (Flip(random) ? Pick(random, 1, 40) : 0);
  TensorView view = memory.NewRandom(random, dtype, {count, apart});
  view.layout.rank = 3;
  view.layout.dims = {count, rows, cols};
  view.layout.strides = {apart, turned ? 1 : length, turned ? length : 1};
  return view;
}

TensorView MatrixAt(TensorView view, int64_t i) {
  view.data = AddressOf(view, {i});
  return MatrixOf(view);
}

}  // namespace

void BatchedMatmulContract(const Subject& subject) {
  Random random(26);
  for (int repeat = 0; repeat <= 60; ++repeat) {
    Memory memory;
    // The last: more than a grid's last dimension has.
    const bool many = repeat == 60;
    const int64_t count = many ? 70000 : repeat % 6 == 0 ? 1 : Pick(random, 2, 5);
    const int64_t m = many ? 3 : PickSize(random), n = many ? 2 : PickSize(random),
                  k = many               ? 4
                      : repeat % 10 == 3 ? 2049
                                         : PickSize(random);
    const DType operands = PickFloat(random);
    BatchedMatmulOp<TensorView> op{};
    op.a = PickMatrices(memory, random, operands, count, m, k, /*by_rows=*/false);
    op.b = PickMatrices(memory, random, operands, count, k, n, /*by_rows=*/false);
    op.out = PickMatrices(memory, random, Flip(random) ? DType::kF32 : operands, count, m, n,
                          /*by_rows=*/true);
    if (repeat % 4 == 2 && m <= k) {  // a gram matrix: both operands are one
      op.b = op.a;
      std::swap(op.b.layout.dims[1], op.b.layout.dims[2]);
      std::swap(op.b.layout.strides[1], op.b.layout.strides[2]);
      op.out = PickMatrices(memory, random, op.out.dtype(), count, m, m, /*by_rows=*/true);
    }
    if (many || Flip(random)) {
      op.c = memory.NewLike(op.out);
      FillRandom(random, op.c, 1);
      op.alpha = 2.0315, op.beta = -4.775;
    }
    Reference reference;
    ForEach(op.out.layout, [&](const Index& i) {
      SumOf sum;
      for (int64_t j = 0; j < k; ++j)
        sum.Add(op.alpha * Get(op.a, i[0], i[1], j) * Get(op.b, i[0], j, i[2]));
      if (op.c) sum.Add(op.beta * Get(op.c, i));
      reference.push_back({sum.value, sum.bound(3)});
    });
    Run(subject, memory, subject.table.batched_matmul, op);
    CheckNear(op.out, reference, "batched matmul");
    if (subject.backend != Backend::kCpu || op.c) continue;
    for (int64_t i = 0; i < count; ++i) {
      MatmulOp<TensorView> alone{};
      alone.a = MatrixAt(op.a, i), alone.b = MatrixAt(op.b, i);
      alone.out = memory.New(op.out.dtype(), {op.out.dim(1), op.out.dim(2)});
      Run(subject, memory, subject.table.matmul, alone);
      CHECK(SameBits(alone.out, MatrixAt(op.out, i)));
    }
  }
}

}  // namespace millrace::test
