#include "kernels/ops/cost.h"

#include <algorithm>
#include <catch2/catch.hpp>

namespace millrace {
namespace {

Shape Of(DType dtype, std::initializer_list<int64_t> dims) {
  return {DenseLayout(dtype, dims), true};
}

MatmulOp<Shape> Matmul(DType ab, DType out, int64_t m, int64_t n, int64_t k) {
  MatmulOp<Shape> op;
  op.a = Of(ab, {m, k}), op.b = Of(ab, {k, n}), op.out = Of(out, {m, n});
  return op;
}

AttentionOp<Shape> Attention(DType dtype, int64_t b, int64_t t, int64_t h, int64_t kv, int64_t d) {
  AttentionOp<Shape> op;
  op.q = op.out = Of(dtype, {b, t, h, d});
  op.k = op.v = Of(dtype, {b, t, kv, d});
  op.lse = Of(DType::kF32, {b, h, t});
  return op;
}

TEST_CASE("matmul: two FLOPs per multiply-add, each operand touched once") {
  const OpCost cost = Cost(Matmul(DType::kBF16, DType::kF32, 10, 20, 30));
  CHECK(cost.flops == 12000);
  CHECK(cost.read_bytes == (10 * 30 + 30 * 20) * 2);
  CHECK(cost.write_bytes == 10 * 20 * 4);
}

TEST_CASE("an accumulating matmul also reads its destination; bias and pre count when present") {
  MatmulOp<Shape> op = Matmul(DType::kF32, DType::kF32, 10, 20, 30);
  op.update = Update::kAccumulate;
  CHECK(Cost(op).read_bytes == (10 * 30 + 30 * 20 + 10 * 20) * 4);
  op.update = Update::kOverwrite;
  op.bias = Of(DType::kF32, {20});
  op.pre = Of(DType::kF32, {10, 20});
  op.scratch = Of(DType::kU8, {1 << 20});
  CHECK(Cost(op).read_bytes == (10 * 30 + 30 * 20 + 20) * 4);
  CHECK(Cost(op).write_bytes == 2 * 10 * 20 * 4);
}

TEST_CASE("attention counts the pairs of the lower triangle") {
  double pairs = 0;
  for (int t = 0; t < 7; ++t)
    for (int u = 0; u <= t; ++u) ++pairs;
  CHECK(Flops(Attention(DType::kF32, 2, 7, 6, 3, 5)) == 2 * 2 * 5 * pairs * 2 * 6);
  AttentionGradOp<Shape> grad;
  grad.q = Of(DType::kF32, {2, 7, 6, 5});
  CHECK(Flops(grad) == 5 * 2 * 5 * pairs * 2 * 6);
}

TEST_CASE("attention with a window counts the pairs within it; ranks of a sequence the mean") {
  AttentionOp<Shape> op = Attention(DType::kF32, 2, 8, 6, 3, 5);
  double pairs = 0;
  for (int t = 0; t < 8; ++t) pairs += std::min(t + 1, 3);
  op.window = 3;
  CHECK(Flops(op) == 2 * 2 * 5 * pairs * 2 * 6);
  op.window = 8;  // all before a token
  CHECK(Flops(op) == 2 * 2 * 5 * 36 * 2 * 6);
  op = Attention(DType::kF32, 2, 4, 6, 3, 5);
  op.rows.ranks = 2;
  op.window = 3;
  CHECK(Flops(op) == 2 * 2 * 5 * pairs / 2 * 2 * 6);
}

// 12 slots, 3 experts; whatever their loads, each slot is a row of one product.
TEST_CASE("products of experts count each slot once") {
  GroupedMatmulOp<Shape> op;
  op.a = Of(DType::kBF16, {12, 5}), op.b = Of(DType::kBF16, {3, 5, 7});
  op.out = Of(DType::kBF16, {12, 7});
  CHECK(Flops(op) == 2.0 * 12 * 5 * 7);
  GroupedWeightGradOp<Shape> grad;
  grad.d_out = Of(DType::kBF16, {12, 7}), grad.a = Of(DType::kBF16, {12, 5});
  grad.out = Of(DType::kF32, {3, 7, 5});
  CHECK(Flops(grad) == 2.0 * 12 * 5 * 7);
}

// A sequence of 7 in chunks of 4: 4*5/2 + 3*4/2 pairs; 2 groups of 3 heads of 5 channels, 6 states.
TEST_CASE("a scan counts the pairs of its chunks, those of b and c once per group") {
  SsdScanOp<Shape> op;
  op.chunk = 4;
  op.x = op.out = Of(DType::kF32, {2, 7, 6, 5});
  op.b = op.c = Of(DType::kF32, {2, 7, 2, 6});
  CHECK(Flops(op) == 2.0 * 2 * (16 * (2 * 6 + 6 * 5) + 7 * 2 * 6 * 5 * 6));
  SsdScanGradOp<Shape> grad;
  grad.chunk = 4;
  grad.x = grad.d_out = grad.d_x = op.x;
  grad.b = grad.c = grad.d_b = grad.d_c = op.b;
  CHECK(Flops(grad) == 2.0 * 2 * (16 * (3 * 2 * 6 + 2 * 6 * 5) + 7 * 5 * 6 * 5 * 6));
}

TEST_CASE("a lookup reads the rows it looks up, not the table") {
  EmbedOp<Shape> op;
  op.tokens = Of(DType::kI32, {2, 3});
  op.table = Of(DType::kBF16, {50000, 8});
  op.out = Of(DType::kBF16, {6, 8});
  CHECK(Cost(op).read_bytes == 6 * 4 + 6 * 8 * 2);
  CHECK(Cost(op).write_bytes == 6 * 8 * 2);
  CHECK(Cost(op).flops == 6 * 8);
}

TEST_CASE("AdamW: reads five, writes four shards") {
  AdamWOp<Shape> op;
  op.master = op.m = op.v = Of(DType::kF32, {1000});
  op.grad = Of(DType::kBF16, {1000});
  op.compute = Of(DType::kBF16, {1000});
  CHECK(Cost(op).read_bytes == 1000 * (3 * 4 + 2));
  CHECK(Cost(op).write_bytes == 1000 * (3 * 4 + 2));
  CHECK(Cost(op).flops > 0);
}

TEST_CASE("ops that move bytes cost no arithmetic; every other op costs some") {
  CastOp<Shape> cast;
  cast.x = cast.out = Of(DType::kF32, {100});
  CHECK(Cost(cast).flops == 0);
  NormOp<Shape> norm;
  norm.x = norm.out = Of(DType::kF32, {10, 10});
  CHECK(Cost(norm).flops > 0);
  ReduceScatterOp<Shape> reduce;
  reduce.full = Of(DType::kF32, {100});
  CHECK(Cost(reduce).flops == 100);
}

TEST_CASE("workspace of the CPU: none when the product is formed in place") {
  CHECK(WorkspaceBytes(Matmul(DType::kF32, DType::kF32, 4000, 3000, 500), Backend::kCpu) == 0);
  MatmulOp<Shape> transposed = Matmul(DType::kF32, DType::kF32, 40, 30, 500);
  transposed.out.layout.strides = {1, 40, 0, 0};
  CHECK(WorkspaceBytes(transposed, Backend::kCpu) == 40 * 30 * 4);
}

TEST_CASE("workspace of the CPU: bounded by a tile, however large the matmul") {
  MatmulOp<Shape> op = Matmul(DType::kF32, DType::kF32, 100000, 50000, 70000);
  op.update = Update::kAccumulate;
  CHECK(WorkspaceBytes(op, Backend::kCpu) == 512 * 512 * 4);
  const MatmulOp<Shape> converted = Matmul(DType::kBF16, DType::kBF16, 100000, 50000, 70000);
  CHECK(WorkspaceBytes(converted, Backend::kCpu) == (512 * 512 + 2 * 512 * 2048) * 4);
}

TEST_CASE("workspace of the CPU: attention keeps one block of scores, and converted heads") {
  CHECK(WorkspaceBytes(Attention(DType::kF32, 8, 300, 6, 3, 64), Backend::kCpu) == 64 * 300 * 4);
  CHECK(WorkspaceBytes(Attention(DType::kF32, 8, 10, 6, 3, 64), Backend::kCpu) == 10 * 10 * 4);
  CHECK(WorkspaceBytes(Attention(DType::kBF16, 8, 300, 6, 3, 64), Backend::kCpu) ==
        (64 * 300 + 2 * 64 * 64 + 2 * 300 * 64) * 4);
}

TEST_CASE("unsupported shapes are named with the value and the limit") {
  using Catch::Matchers::Contains;
  CHECK(WhyUnsupported(Matmul(DType::kF32, DType::kF32, 1, 2, 3), Backend::kCpu).empty());
  CHECK_THAT(
      WhyUnsupported(Matmul(DType::kF32, DType::kF32, int64_t{1} << 31, 2, 3), Backend::kCpu),
      Contains("2147483648") && Contains("2147483647"));
  CHECK(WhyUnsupported(Attention(DType::kF32, 1, 2, 4, 2, 8), Backend::kCpu).empty());
  CHECK_THAT(WhyUnsupported(Attention(DType::kF32, 1, 2, 4, 3, 8), Backend::kCpu),
             Contains("4 heads") && Contains("3"));
  CHECK_THAT(WhyUnsupported(Attention(DType::kF32, 1, 2, 4, 4, 1024), Backend::kCpu),
             Contains("1024") && Contains("512"));
  RopeOp<Shape> rope;
  rope.x = Of(DType::kF32, {1, 2, 3, 5});
  CHECK_THAT(WhyUnsupported(rope, Backend::kCpu), Contains("5 is odd"));
  rope.x = Of(DType::kF32, {1, 2, 3, 6});
  CHECK(WhyUnsupported(rope, Backend::kCpu).empty());
}

TEST_CASE("a row in order has a narrower norm, columns in eights, and fewer finishes") {
  using Catch::Matchers::Contains;
  const auto why = [](int64_t depth, int64_t columns, RowNorm norm, RowFinish finish,
                      bool in_order = true, Backend backend = Backend::kCuda) {
    RowLinearOp<Shape> op;
    op.in_order = in_order, op.norm = norm, op.finish = finish;
    op.x = Of(DType::kBF16, {1, depth});
    op.weight = Of(DType::kBF16, {columns, depth});
    return WhyUnsupported(op, backend);
  };
  CHECK(why(4096, 8, RowNorm::kRms, RowFinish::kGelu).empty());
  CHECK_THAT(why(4104, 8, RowNorm::kLayer, RowFinish::kNone), Contains("4104") && Contains("4096"));
  CHECK(why(4104, 8, RowNorm::kLayer, RowFinish::kNone, false).empty());
  CHECK_THAT(why(12, 8, RowNorm::kRms, RowFinish::kNone), Contains("multiples of 8"));
  CHECK_THAT(why(64, 12, RowNorm::kRms, RowFinish::kNone), Contains("12 columns"));
  CHECK(why(64, 12, RowNorm::kRms, RowFinish::kNone, false).empty());
  CHECK_THAT(why(64, 8, RowNorm::kNone, RowFinish::kNone), Contains("with a norm"));
  CHECK(why(64, 8, RowNorm::kNone, RowFinish::kNone, false).empty());
  for (const RowFinish finish : {RowFinish::kSwiglu, RowFinish::kRotate}) {
    CHECK_THAT(why(64, 8, RowNorm::kRms, finish), Contains("no SwiGLU or rotation"));
    CHECK(why(64, 8, RowNorm::kRms, finish, false).empty());
    CHECK(why(64, 8, RowNorm::kRms, finish, true, Backend::kCpu).empty());
  }
}

}  // namespace
}  // namespace millrace
