#include <catch2/catch.hpp>
#include <limits>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

int64_t PickLength(Random& random, int repeat) {
  constexpr int64_t kSpecial[] = {0, 1, 511, 512, 513, 1025, 4099};
  return repeat < static_cast<int>(std::size(kSpecial)) ? kSpecial[repeat] : Pick(random, 1, 300);
}

// One f32 operation, then one rounding: exact, so results are compared as bits.
template <class F>
void CheckExact(Memory& memory, const TensorView& got, const char* name, F&& value) {
  const TensorView expected = memory.New(got.dtype(), {got.dim(0)});
  for (int64_t i = 0; i < got.dim(0); ++i) Set(expected, {i}, value(i));
  INFO(name << ' ' << ToString(got.layout));
  CHECK(SameBits(got, expected));
}

void AddCase(const Subject& subject, Random& random, int64_t n) {
  Memory memory;
  AddOp<TensorView> op{};
  op.a = memory.NewRandom(random, PickFloat(random), {n});
  op.b = memory.NewRandom(random, PickFloat(random), {n});
  const int64_t place = Pick(random, 0, 2);
  op.out = place == 1 ? op.a : place == 2 ? op.b : memory.New(PickFloat(random), {n});
  const TensorView a = memory.Clone(op.a), b = memory.Clone(op.b);
  Run(subject, memory, subject.table.add, op);
  CheckExact(memory, op.out, "add", [&](int64_t i) {
    return static_cast<float>(Get(a, i)) + static_cast<float>(Get(b, i));
  });
}

void AddBiasCase(const Subject& subject, Random& random, int64_t rows, int64_t columns) {
  Memory memory;
  AddBiasOp<TensorView> op{};
  op.x = memory.NewRandom(random, PickFloat(random), {rows, columns});
  op.bias = memory.NewRandom(random, PickFloat(random), {columns});
  op.out = Flip(random) ? op.x : memory.New(PickFloat(random), {rows, columns});
  const TensorView x = memory.Clone(op.x), expected = memory.New(op.out.dtype(), {rows, columns});
  Run(subject, memory, subject.table.add_bias, op);
  ForEach(op.out.layout, [&](const Index& i) {
    Set(expected, i, static_cast<float>(Get(x, i)) + static_cast<float>(Get(op.bias, i[1])));
  });
  INFO("add_bias " << ToString(op.out.layout));
  CHECK(SameBits(op.out, expected));
}

// Cast, concat and accumulate are one function of (x, old, update).
template <template <class> class Op>
void CopyCase(const Subject& subject, Random& random, KernelFn<Op> entry, DType out, int64_t n) {
  Memory memory;
  Op<TensorView> op{};
  op.x = memory.NewRandom(random, PickFloat(random), {n}, Strides::kDense, Flip(random) ? 1 : 1e38);
  op.out = memory.NewRandom(random, out, {n});
  const TensorView old = memory.Clone(op.out);
  bool accumulate = false;
  if constexpr (requires { op.update; }) {
    op.update = PickUpdate(random);
    accumulate = op.update == Update::kAccumulate;
  }
  Run(subject, memory, entry, op);
  CheckExact(memory, op.out, Op<TensorView>::kName, [&](int64_t i) {
    const float x = static_cast<float>(Get(op.x, i));
    return accumulate ? static_cast<float>(Get(old, i)) + x : x;
  });
}

void JoinColumnsCase(const Subject& subject, Random& random) {
  Memory memory;
  const int64_t parts = Pick(random, 1, 4), rows = Pick(random, 1, 5), width = Pick(random, 1, 70);
  const int64_t columns = Pick(random, 1, parts * width);
  JoinColumnsOp<TensorView> op{};
  op.x = memory.NewRandom(random, PickFloat(random), {parts, rows, width});
  op.out = memory.New(op.x.dtype(), {rows, columns});
  Run(subject, memory, subject.table.join_columns, op);
  ForEach(op.out.layout, [&](const Index& i) {
    CHECK(Get(op.out, i) == Get(op.x, {i[1] / width, i[0], i[1] % width}));
  });
}

void CopyRowsCase(const Subject& subject, Random& random, DType dtype, int64_t rows,
                  int64_t columns) {
  constexpr Strides kStrides[] = {Strides::kDense, Strides::kPadded, Strides::kTransposed};
  Memory memory;
  CopyRowsOp<TensorView> op{};
  op.x = memory.New(dtype, {rows, columns}, kStrides[Pick(random, 0, 1)]);
  ForEach(op.x.layout, [&](const Index& i) {
    Set(op.x, i, static_cast<double>((i[0] * 131 + i[1] * 7) % 251));
  });
  op.out = memory.New(dtype, {rows, columns}, kStrides[Pick(random, 0, 2)]);
  Run(subject, memory, subject.table.copy_rows, op);
  INFO("copy_rows " << ToString(op.x.layout) << " to " << ToString(op.out.layout));
  CHECK(SameBits(op.out, op.x));
}

// Integers are counted from 1.
void ZeroRangesCase(const Subject& subject, Random& random, DType dtype, int64_t n) {
  Memory memory;
  ZeroRangesOp<TensorView> op{};
  if (dtype == DType::kI64 || dtype == DType::kI32) {
    op.flat = memory.New(dtype, {n});
    for (int64_t i = 0; i < n; ++i) Set(op.flat, {i}, static_cast<double>(i + 1));
  } else {
    op.flat = memory.NewRandom(random, dtype, {n});
  }
  auto ranges = std::make_shared<std::vector<Range>>();
  for (int64_t begin = Pick(random, 0, 9); begin < n;) {
    const int64_t end = std::min(n, begin + Pick(random, 0, 40));
    ranges->push_back({begin, end});
    begin = end + Pick(random, 1, 50);
  }
  op.ranges = ranges;
  const TensorView old = memory.Clone(op.flat);
  Run(subject, memory, subject.table.zero_ranges, op);
  CheckExact(memory, op.flat, "zero ranges", [&](int64_t i) {
    for (const Range& range : *ranges)
      if (range.begin <= i && i < range.end) return 0.0;
    return Get(old, i);
  });
}

}  // namespace

void ElementwiseContract(const Subject& subject) {
  Random random(70);
  for (int repeat = 0; repeat < 30; ++repeat) {
    const int64_t n = PickLength(random, repeat);
    INFO("n = " << n);
    AddCase(subject, random, n);
    AddBiasCase(subject, random, repeat < 2 ? repeat : Pick(random, 1, 9), n);
    CopyCase<CastOp>(subject, random, subject.table.cast, PickFloat(random), n);
    CopyCase<ConcatOp>(subject, random, subject.table.concat, PickFloat(random), n);
    CopyCase<AccumulateOp>(subject, random, subject.table.accumulate, DType::kF32, n);
    for (const DType dtype : {PickFloat(random), DType::kI32, DType::kI64})
      ZeroRangesCase(subject, random, dtype, n);
    JoinColumnsCase(subject, random);
    for (const DType dtype : {PickFloat(random), DType::kI64, DType::kI32, DType::kU8})
      CopyRowsCase(subject, random, dtype, repeat < 2 ? repeat : Pick(random, 1, n > 600 ? 3 : 150),
                   n);
  }
  // Downcasting keeps NaN and infinity what they are.
  Memory memory;
  CastOp<TensorView> op{{}, memory.New(DType::kF32, {3}), memory.New(DType::kBF16, {3})};
  Set(op.x, {0}, std::numeric_limits<double>::quiet_NaN());
  Set(op.x, {1}, -std::numeric_limits<double>::infinity());
  Set(op.x, {2}, 3.4e38);  // rounds up to infinity
  Run(subject, memory, subject.table.cast, op);
  CHECK(Get(op.out, 0) != Get(op.out, 0));
  CHECK(Get(op.out, 1) == -std::numeric_limits<double>::infinity());
  CHECK(Get(op.out, 2) == std::numeric_limits<double>::infinity());
}

}  // namespace millrace::test
