// What the CPU backend promises beyond the contract: concurrency, and errors that name both values.
#include "kernels/cpu/cpu_kernels.h"

#include <catch2/catch.hpp>
#include <thread>

#include "kernels/ops/cost.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/base/error.h"
#include "tests/kernels/support/memory.h"

namespace millrace::test {
namespace {

struct Call {
  Memory memory;
  MatmulOp<TensorView> op;

  Call(int64_t m, int64_t n, int64_t k) {
    Random random(7);
    op.a = memory.NewRandom(random, DType::kF32, {m, k});
    op.b = memory.NewRandom(random, DType::kF32, {k, n});
    op.out = memory.New(DType::kF32, {m, n});
  }
};

TEST_CASE("ranks as threads multiply at the same time and get the bits of one") {
  const auto stream = MakeHostDevice()->MakeStream(StreamRole::kCompute);
  Call reference(300, 257, 130);
  CpuKernels().matmul(reference.op, *stream);
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(std::make_unique<Call>(300, 257, 130));
  std::vector<std::thread> threads;
  for (const auto& call : calls) {
    threads.emplace_back([&call] {
      const auto own_stream = MakeHostDevice()->MakeStream(StreamRole::kCompute);
      for (int repeat = 0; repeat < 10; ++repeat) CpuKernels().matmul(call->op, *own_stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& call : calls) CHECK(SameBits(call->op.out, reference.op.out));
}

// `rows` of the op's, from row `first` on, as a product that is to have its bits.
MatmulOp<TensorView> RowsOf(Memory& memory, const MatmulOp<TensorView>& whole, int64_t first,
                            int64_t rows) {
  MatmulOp<TensorView> op = whole;
  op.like_rows = whole.a.dim(0);
  op.a.data += first * whole.a.stride(0) * Bytes(whole.a.dtype());
  op.a.layout.dims[0] = rows;
  op.out = memory.New(whole.out.dtype(), {rows, whole.out.dim(1)});
  op.places = memory.New(DType::kI32, {rows});
  for (int64_t r = 0; r < rows; ++r) op.places.as<int32_t>()[r] = static_cast<int32_t>(first + r);
  const Shape a{op.a.layout, true}, b{op.b.layout, true}, out{op.out.layout, true};
  MatmulOp<Shape> shapes;
  shapes.a = a, shapes.b = b, shapes.out = out, shapes.like_rows = op.like_rows;
  op.scratch = memory.New(DType::kU8, {WorkspaceBytes(shapes, Backend::kCpu)});
  return op;
}

TEST_CASE("a few rows of a product have the bits that they have in all of it") {
  const auto stream = MakeHostDevice()->MakeStream(StreamRole::kCompute);
  Random random(9);
  struct Sizes {
    int64_t m, n, k;
  };
  // Small products, which a BLAS may form in another way; large ones; several tiles, of which the
  // last is another.
  for (const Sizes s :
       {Sizes{32, 48, 64}, {160, 32, 33}, {512, 96, 256}, {1024, 576, 96}, {576, 64, 2100}})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Memory memory;
      MatmulOp<TensorView> op;
      op.a = memory.NewRandom(random, dtype, {s.m, s.k});
      const TensorView weight = memory.NewRandom(random, dtype, {s.n, s.k});
      op.b = weight;
      op.b.layout.dims = {s.k, s.n};
      op.b.layout.strides = {1, s.k};
      op.bias = memory.NewRandom(random, dtype, {s.n});
      op.epilogue = Epilogue::kBiasGelu;
      op.out = memory.New(dtype, {s.m, s.n});
      MatmulOp<Shape> shapes;
      shapes.a = {op.a.layout, true}, shapes.b = {op.b.layout, true};
      shapes.out = {op.out.layout, true};
      op.scratch = memory.New(DType::kU8, {WorkspaceBytes(shapes, Backend::kCpu)});
      CpuKernels().matmul(op, *stream);
      for (const int64_t rows : {int64_t{1}, int64_t{3}, int64_t{17}, s.m / 2 + 5}) {
        const int64_t first = Pick(random, 0, s.m - rows);
        const MatmulOp<TensorView> few = RowsOf(memory, op, first, rows);
        CpuKernels().matmul(few, *stream);
        TensorView same = op.out;
        same.data += first * s.n * Bytes(dtype);
        same.layout.dims[0] = rows;
        INFO(s.m << " " << s.n << " " << s.k << ", " << rows << " rows from " << first);
        CHECK(SameBits(few.out, same));
      }
    }
}

// Columns of a product that ranks share: `part` from `first` on, of rows as RowsOf gives them.
MatmulOp<TensorView> ColumnsOf(Memory& memory, const MatmulOp<TensorView>& rows, int64_t first,
                               int64_t part) {
  MatmulOp<TensorView> op = rows;
  const DType dtype = op.b.dtype();
  op.like_columns = rows.b.dim(1);
  op.like_first = first;
  op.b.data += first * op.b.stride(1) * Bytes(dtype);
  op.b.layout.dims[1] = part;
  op.out = memory.New(dtype, {op.a.dim(0), part});
  MatmulOp<Shape> shapes;
  shapes.a = {op.a.layout, true}, shapes.b = {op.b.layout, true};
  shapes.out = {op.out.layout, true};
  shapes.like_rows = op.like_rows, shapes.like_columns = op.like_columns;
  op.scratch = memory.New(DType::kU8, {WorkspaceBytes(shapes, Backend::kCpu)});
  return op;
}

TEST_CASE("a part of a product's columns has the bits that they have in all of it") {
  const auto stream = MakeHostDevice()->MakeStream(StreamRole::kCompute);
  Random random(11);
  struct Sizes {
    int64_t m, n, k, ranks;
  };
  // Columns of one tile; of several; parts that are tiles; ranks without a column of their own.
  for (const Sizes s : {Sizes{32, 64, 48, 2},
                        {40, 64, 33, 3},
                        {96, 1152, 70, 3},
                        {64, 1088, 2100, 5},
                        {80, 1024, 64, 2},
                        {32, 4, 40, 3}})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Memory memory;
      const int64_t part = (s.n + s.ranks - 1) / s.ranks;
      MatmulOp<TensorView> whole;
      whole.a = memory.NewRandom(random, dtype, {s.m, s.k});
      // What lies behind the last row belongs to no column.
      whole.b = memory.NewRandom(random, dtype, {part * s.ranks, s.k});
      whole.b.layout.dims = {s.k, s.n};
      whole.b.layout.strides = {1, s.k};
      whole.out = memory.New(dtype, {s.m, s.n});
      MatmulOp<Shape> shapes;
      shapes.a = {whole.a.layout, true}, shapes.b = {whole.b.layout, true};
      shapes.out = {whole.out.layout, true};
      whole.scratch = memory.New(DType::kU8, {WorkspaceBytes(shapes, Backend::kCpu)});
      CpuKernels().matmul(whole, *stream);
      for (int64_t rank = 0; rank < s.ranks; ++rank) {
        const int64_t rows = Pick(random, 1, s.m), first = Pick(random, 0, s.m - rows);
        const MatmulOp<TensorView> own =
            ColumnsOf(memory, RowsOf(memory, whole, first, rows), rank * part, part);
        CpuKernels().matmul(own, *stream);
        INFO(s.m << " " << s.n << " " << s.k << ", part " << rank << " of " << s.ranks);
        int64_t other = 0;
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < part; ++c) {
            const int64_t column = rank * part + c;
            other +=
                Get(own.out, {r, c}) != (column < s.n ? Get(whole.out, {first + r, column}) : 0);
          }
        CHECK(other == 0);
      }
    }
}

template <class F>
std::string MessageOf(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInternal);
    return error.what();
  }
  return "no error";
}

TEST_CASE("an op that its contract does not allow is refused with both values") {
  const auto stream = MakeHostDevice()->MakeStream(StreamRole::kCompute);
  const KernelTable& table = CpuKernels();
  Random random(8);
  Memory memory;
  using Catch::Matchers::Contains;

  SECTION("inner dimensions") {
    Call call(3, 4, 5);
    call.op.b = memory.NewRandom(random, DType::kF32, {6, 4});
    CHECK_THAT(MessageOf([&] { table.matmul(call.op, *stream); }),
               Contains("5") && Contains("6") && Contains("rows of b"));
  }
  SECTION("missing scratch") {
    Call call(3, 4, 5);
    call.op.update = Update::kAccumulate;
    CHECK_THAT(MessageOf([&] { table.matmul(call.op, *stream); }),
               Contains("12") && Contains("scratch"));
  }
  SECTION("an epilogue on an accumulation") {
    Call call(3, 4, 5);
    call.op.update = Update::kAccumulate;
    call.op.epilogue = Epilogue::kGelu;
    CHECK_THAT(MessageOf([&] { table.matmul(call.op, *stream); }), Contains("no epilogue"));
  }
  SECTION("dtype") {
    AddOp<TensorView> op{};
    op.a = op.b = memory.New(DType::kF64, {3});
    op.out = memory.New(DType::kF32, {3});
    CHECK_THAT(MessageOf([&] { table.add(op, *stream); }),
               Contains("f64") && Contains("f32, bf16 or f16"));
  }
  SECTION("heads that do not divide") {
    AttentionOp<TensorView> op{};
    op.q = op.out = memory.NewRandom(random, DType::kF32, {1, 2, 3, 4});
    op.k = op.v = memory.NewRandom(random, DType::kF32, {1, 2, 2, 4});
    CHECK_THAT(MessageOf([&] { table.attention(op, *stream); }), Contains("3 heads on 2"));
  }
  SECTION("a token past the table") {
    StepScalars scalars{};
    EmbedOp<TensorView> op{};
    op.tokens = memory.NewTokens(random, {1, 1}, 9, 10);
    op.scalars = memory.NewScalars(scalars);
    op.table = memory.NewRandom(random, DType::kF32, {9, 2});
    op.out = memory.New(DType::kF32, {1, 2});
    CHECK_THAT(MessageOf([&] { table.embed(op, *stream); }),
               Contains("token 9") && Contains("9 rows"));
  }
}

}  // namespace
}  // namespace millrace::test
