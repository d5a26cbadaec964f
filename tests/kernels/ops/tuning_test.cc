#include "kernels/ops/tuning.h"

#include <catch2/catch.hpp>
#include <utility>

#include "kernels/ops/cost.h"
#include "kernels/ops/cuda_float8.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

Shape Dense(DType dtype, int64_t rows, int64_t cols) {
  return {DenseLayout(dtype, {rows, cols}), true};
}

MatmulOp<Shape> Matmul(DType operands, DType out, int64_t m, int64_t n, int64_t k) {
  MatmulOp<Shape> op;
  op.a = Dense(operands, m, k), op.b = TransposedView(Dense(operands, n, k)),
  op.out = Dense(out, m, n);
  return op;
}

TEST_CASE("a matrix is described by its row stride, and by what that says about addresses") {
  CHECK(MatrixKeyOf(DenseLayout(DType::kBF16, {5, 24})) == MatrixKey{false, 24, 16});
  CHECK(MatrixKeyOf(DenseLayout(DType::kBF16, {5, 20})) == MatrixKey{false, 20, 8});
  CHECK(MatrixKeyOf(DenseLayout(DType::kBF16, {5, 7})) == MatrixKey{false, 7, 2});
  CHECK(MatrixKeyOf(DenseLayout(DType::kF32, {5, 7})) == MatrixKey{false, 7, 4});
  CHECK(MatrixKeyOf(TransposedView(Dense(DType::kBF16, 64, 40)).layout) == MatrixKey{true, 40, 16});
  Layout padded = DenseLayout(DType::kF32, {5, 6});
  padded.strides[0] = 12;
  CHECK(MatrixKeyOf(padded) == MatrixKey{false, 12, 16});
  padded.strides[1] = 2;
  CHECK_THROWS_AS(MatrixKeyOf(padded), Error);
}

TEST_CASE("a matrix of one line is never read past it") {
  Layout row = DenseLayout(DType::kF32, {1, 9});
  row.strides[0] = 1;  // the transpose of a column
  CHECK(MatrixKeyOf(row) == MatrixKey{false, 9, 4});
  CHECK(MatrixKeyOf(TransposedView(Shape{row, true}).layout) == MatrixKey{false, 1, 4});
}

TEST_CASE("the product of a result by columns is that of the transposes") {
  MatmulOp<Shape> op = Matmul(DType::kBF16, DType::kF32, 48, 80, 32);
  const MatmulKey forward = KeyOf(op).value();
  CHECK(ToString(forward) == "bf16 48 x 80 x 32 -> f32, a 32, b T 32, out 80");
  op.out = TransposedView(Dense(DType::kF32, 80, 48));
  const MatmulKey swapped = KeyOf(op).value();
  CHECK(ToString(swapped) == "bf16 80 x 48 x 32 -> f32, a 32, b T 32, out 48");
  CHECK(HashOf(swapped) != HashOf(forward));
}

TEST_CASE("the update is no part of a product, the bias is, and pre is its result") {
  MatmulOp<Shape> op = Matmul(DType::kBF16, DType::kF32, 48, 80, 32);
  const MatmulKey overwrite = KeyOf(op).value();
  op.update = Update::kAccumulate;
  CHECK(KeyOf(op) == overwrite);
  op = Matmul(DType::kBF16, DType::kBF16, 48, 80, 32);
  op.epilogue = Epilogue::kBiasGelu;
  op.bias = {DenseLayout(DType::kBF16, {80}), true};
  op.pre = op.out, op.out = Dense(DType::kF32, 48, 80);
  CHECK(ToString(KeyOf(op).value()) == "bf16 48 x 80 x 32 -> bf16, a 32, b T 32, out 80, bias");
}

TEST_CASE(
    "what rounds once to bf16 is the product of a dense f32 result, and has scratch for all of "
    "it") {
  MatmulOp<Shape> op = Matmul(DType::kBF16, DType::kBF16, 4096, 3000, 32);
  const std::optional<MatmulKey> of_bf16 = KeyOf(op),
                                 of_f32 = KeyOf(Matmul(DType::kBF16, DType::kF32, 4096, 3000, 32));
  const auto check = [&](const MatmulOp<Shape>& once) {
    CHECK(KeyOf(once) == of_f32);
    CHECK(RouteOf(once) == MatmulRoute::kWhole);
    CHECK(WorkspaceBytes(once, Backend::kCuda) == kMatmulWorkspaceBytes + 4096 * 3000 * 4);
  };
  CHECK(of_bf16 != of_f32);
  op.rounding = Rounding::kOnce;
  check(op);
  op.out.layout.strides[0] = 3008;
  check(op);
  op.rounding = Rounding::kBackend;
  op.update = Update::kAccumulate;  // always once
  check(op);
  MatmulOp<Shape> converted = Matmul(DType::kF32, DType::kBF16, 4096, 3000, 32);
  converted.rounding = Rounding::kOnce;  // no tiles, their products are others
  CHECK(KeyOf(converted) == KeyOf(Matmul(DType::kF32, DType::kF32, 4096, 3000, 32)));
  CHECK(WorkspaceBytes(converted, Backend::kCuda) == kMatmulWorkspaceBytes + 4096 * 3000 * 4);

  // Nothing to round: one launch.
  MatmulOp<Shape> f32 = Matmul(DType::kBF16, DType::kF32, 4096, 3000, 32);
  f32.rounding = Rounding::kOnce;
  CHECK(KeyOf(f32) == of_f32);
  CHECK(WorkspaceBytes(f32, Backend::kCuda) == kMatmulWorkspaceBytes);
  f32.update = Update::kAccumulate;
  CHECK(KeyOf(f32) == of_f32);
  CHECK(WorkspaceBytes(f32, Backend::kCuda) == kMatmulWorkspaceBytes);
}

TEST_CASE("what cuBLASLt does not run in one launch has scratch for a tile, and no key") {
  const auto check = [](const MatmulOp<Shape>& op, int64_t tile_bytes) {
    CHECK(WorkspaceBytes(op, Backend::kCuda) == kMatmulWorkspaceBytes + tile_bytes);
    CHECK(KeyOf(op).has_value() == (tile_bytes == 0));
  };
  check(Matmul(DType::kBF16, DType::kF32, 48, 80, 32), 0);
  check(Matmul(DType::kF32, DType::kF32, 48, 80, 32), 0);
  check(Matmul(DType::kF32, DType::kBF16, 48, 80, 32), 48 * 80 * 4);
  check(Matmul(DType::kF32, DType::kBF16, 4096, 4096, 32), kMatmulTileBytes);
  MatmulOp<Shape> biased = Matmul(DType::kBF16, DType::kBF16, 48, 80, 32);
  biased.epilogue = Epilogue::kBias;
  biased.bias = {DenseLayout(DType::kBF16, {80}), true};
  check(biased, 0);
  biased.bias.layout.dtype = DType::kF32;
  check(biased, 48 * 80 * 4);
  biased.bias.layout.dtype = DType::kBF16;
  biased.out = TransposedView(Dense(DType::kBF16, 80, 48));
  check(biased, 48 * 80 * 4);
  CHECK_FALSE(KeyOf(Matmul(DType::kF32, DType::kF32, 48, 80, 0)).has_value());
  CHECK_FALSE(KeyOf(Matmul(DType::kF32, DType::kF32, 0, 80, 5)).has_value());
}

TEST_CASE("CUDA multiplies operands of one dtype, and activates rows") {
  MatmulOp<Shape> op = Matmul(DType::kBF16, DType::kF32, 48, 80, 32);
  CHECK(WhyUnsupported(op, Backend::kCuda) == "");
  op.b = Dense(DType::kF32, 32, 80);
  CHECK(WhyUnsupported(op, Backend::kCuda) ==
        "matmul of bf16 by f32: operands of one dtype are allowed on CUDA");
  CHECK(WhyUnsupported(op, Backend::kCpu) == "");
  op.b = Dense(DType::kBF16, 32, 80);
  op.epilogue = Epilogue::kGelu;
  CHECK(WhyUnsupported(op, Backend::kCuda) == "");
  op.rounding = Rounding::kOnce;
  for (const Backend backend : {Backend::kCpu, Backend::kCuda})
    CHECK(WhyUnsupported(op, backend) == "matmul that rounds once takes no epilogue");
  op.rounding = Rounding::kBackend;
  op.out = TransposedView(Dense(DType::kF32, 80, 48));
  CHECK(WhyUnsupported(op, Backend::kCuda) ==
        "matmul with an activation into f32[48, 80 : 1, 48]: rows are contiguous on CUDA");
}

Shape ScalesInPlace(KeyScales kind, int64_t lines, int64_t sum) {
  return {cuda::ScalesInPlace(kind, lines, sum), true};
}
MatmulOp<Shape> Float8(DType out, KeyScales a, KeyScales b) {
  MatmulOp<Shape> op = Matmul(DType::kE4M3, out, 192, 144, 1040);
  op.scaling = a == KeyScales::kTensor ? Scaling::kProduct : Scaling::kOperands;
  op.a_scales = ScalesInPlace(a, 192, 1040);
  op.b_scales = TransposedView(ScalesInPlace(b, 144, 1040));
  return op;
}

TEST_CASE("a product of FP8 is another by its scales and formats") {
  using enum KeyScales;
  MatmulOp<Shape> op = Float8(DType::kBF16, kVectors, kBlocks);
  CHECK(WhyUnsupported(op, Backend::kCuda) == "");
  const MatmulKey blocks = KeyOf(op).value();
  CHECK(ToString(blocks) ==
        "e4m3 192 x 144 x 1040 -> bf16, a 1040 by vectors, b T 1040 by blocks, out 144");
  op = Float8(DType::kBF16, kTensor, kTensor);
  op.a.layout.dtype = DType::kE5M2;
  CHECK(WhyUnsupported(op, Backend::kCuda) == "");
  const MatmulKey tensor = KeyOf(op).value();
  CHECK(ToString(tensor) ==
        "e5m2 by e4m3 192 x 144 x 1040 -> bf16, a 1040 by tensor, b T 1040 by tensor, out 144");
  CHECK(HashOf(tensor) != HashOf(blocks));
  const MatmulKey plain = KeyOf(Matmul(DType::kBF16, DType::kBF16, 192, 144, 1040)).value();
  TuningTable table{.device = "GPU", .library_version = "1", .matmuls = {}};
  table.matmuls[plain] = {std::string(128, 'a'), "id 66", 12, 13};
  CHECK(table.ToText().find("b_operands") == std::string::npos);
  table.matmuls[blocks] = table.matmuls[tensor] = {std::string(128, 'b'), "id 67", 1, 2};
  CHECK(table.matmuls.begin()->first == plain);
  CHECK(TuningTable::FromText(table.ToText(), "test") == table);
  std::string text = table.ToText();
  text.replace(text.find("\"vectors\""), 9, "\"rows\"");
  CHECK_THROWS_WITH(TuningTable::FromText(text, "test"), Catch::Contains("'rows' are no scales"));
}

TEST_CASE("products of a batch are another call by how many they are and how far apart") {
  BatchedMatmulOp<Shape> op;
  op.a = {DenseLayout(DType::kBF16, {3, 16, 24}), true};
  op.b = {DenseLayout(DType::kBF16, {3, 32, 24}), true};
  std::swap(op.b.layout.dims[1], op.b.layout.dims[2]);
  std::swap(op.b.layout.strides[1], op.b.layout.strides[2]);
  op.out = {DenseLayout(DType::kBF16, {3, 16, 32}), true};
  const MatmulKey dense = BatchedKeyOf(op);
  CHECK(dense.batch == BatchKey{3, 16 * 24, 24 * 32, 16 * 32});
  CHECK(dense.a.alignment == 16);
  CHECK(ToString(dense).ends_with(", 3 that lie 384, 768 and 512 apart"));
  // Matrices that lie apart by an odd number of elements are no better aligned than that.
  op.a.layout.strides[0] = 16 * 24 + 1;
  const MatmulKey apart = BatchedKeyOf(op);
  CHECK(apart.batch.a == 385);
  CHECK(apart.a.alignment == 2);
  CHECK(apart.b == dense.b);
  CHECK(HashOf(dense) != HashOf(KeyOf(Matmul(DType::kBF16, DType::kBF16, 16, 32, 24)).value()));
  // More than a call has: calls of about as many each.
  for (Shape* view : {&op.a, &op.b, &op.out}) view->layout.dims[0] = 70000;
  CHECK(BatchedKeyOf(op).batch.count == 35000);
  for (Shape* view : {&op.a, &op.b, &op.out}) view->layout.dims[0] = kMostInBatch;
  CHECK(BatchedKeyOf(op).batch.count == kMostInBatch);
  // One is a product as any other.
  for (Shape* view : {&op.a, &op.b, &op.out}) view->layout.dims[0] = 1;
  CHECK(BatchedKeyOf(op) == KeyOf(Matmul(DType::kBF16, DType::kBF16, 16, 32, 24)).value());
}

TEST_CASE("of FP8 cuBLASLt adds biases in bf16 to results in bf16") {
  using enum KeyScales;
  const auto route = [](DType out, DType bias) {
    MatmulOp<Shape> op = Float8(out, kVectors, kBlocks);
    op.epilogue = Epilogue::kBias;
    op.bias = {DenseLayout(bias, {144}), true};
    const bool whole = RouteOf(op) == MatmulRoute::kWhole;
    CHECK(WorkspaceBytes(op, Backend::kCuda) ==
          kMatmulWorkspaceBytes + (whole ? 192 * 144 * 4 : 0));
    CHECK(StagedBytes(op, Backend::kCuda) == 0);  // nothing is added to what is there
    CHECK(KeyOf(op)->bias != whole);
    return RouteOf(op);
  };
  CHECK(route(DType::kBF16, DType::kBF16) == MatmulRoute::kOneLaunch);
  CHECK(route(DType::kBF16, DType::kF32) == MatmulRoute::kWhole);
  CHECK(route(DType::kF32, DType::kF32) == MatmulRoute::kWhole);
  CHECK(route(DType::kF32, DType::kBF16) == MatmulRoute::kWhole);
}

TEST_CASE("what cuBLASLt does not multiply in FP8 is refused, and CPUs do") {
  using enum KeyScales;
  const auto refused = [](const MatmulOp<Shape>& op, const std::string& part) {
    CHECK_THAT(WhyUnsupported(op, Backend::kCuda), Catch::Contains(part));
    CHECK(WhyUnsupported(op, Backend::kCpu) == "");
  };
  const MatmulOp<Shape> good = Float8(DType::kBF16, kVectors, kBlocks);
  MatmulOp<Shape> op = Matmul(DType::kE4M3, DType::kBF16, 40, 144, 1040);
  op.scaling = good.scaling;
  op.a_scales = ScalesInPlace(kVectors, 40, 1040), op.b_scales = good.b_scales;
  refused(op, "40 x 144 x 1040; on CUDA multiples of 16 are allowed");
  op = good, op.a.layout.dtype = op.b.layout.dtype = DType::kE5M2;
  refused(op, "e5m2 by e5m2");
  op = good, op.a = TransposedView(Dense(DType::kE4M3, 1040, 192));
  refused(op, "what is summed lies in lines");
  op = good, op.b = Dense(DType::kE4M3, 1040, 144);
  refused(op, "b's transpose");
  op = good, op.a_scales = Dense(DType::kF32, 192, 9);
  refused(op, "scales of a");
  refused(Float8(DType::kBF16, kBlocks, kBlocks), "128 x 128 on both sides");
  op = good, op.out = TransposedView(Dense(DType::kBF16, 144, 192));
  refused(op, "rows begin at multiples of 16 bytes");
}

MatmulOp<Shape> WithGeluGrad(int64_t n) {
  MatmulOp<Shape> op = Matmul(DType::kBF16, DType::kBF16, 48, n, 32);
  op.epilogue = Epilogue::kGeluGrad;
  op.pre = op.out;
  return op;
}

TEST_CASE(
    "GELU's gradient is asked of a library in bf16, at a pre that lies like out, in whole "
    "vectors, behind no product of FP8") {
  const MatmulOp<Shape> op = WithGeluGrad(80);
  const MatmulKey product = KeyOf(op).value(), fused = FusedKeyOf(op).value();
  CHECK(ToString(product) == "bf16 48 x 80 x 32 -> bf16, a 32, b T 32, out 80");
  CHECK(ToString(fused) == ToString(product) + ", GELU's gradient");
  CHECK(HashOf(fused) != HashOf(product));
  CHECK(product <
        fused);  // tuned in that order: the product's algorithm is what the fused one must beat
  CHECK_FALSE(FusedKeyOf(Matmul(DType::kBF16, DType::kBF16, 48, 80, 32)).has_value());
  CHECK_FALSE(FusedKeyOf(WithGeluGrad(84)).has_value());  // rows of 168 bytes
  MatmulOp<Shape> other = op;
  other.pre = Dense(DType::kF32, 48, 80);
  CHECK_FALSE(FusedKeyOf(other).has_value());
  other = op;
  other.pre.layout.strides[0] = 88;
  CHECK_FALSE(FusedKeyOf(other).has_value());
  other = op;
  other.a.layout.dtype = other.b.layout.dtype = DType::kF32;
  CHECK_FALSE(FusedKeyOf(other).has_value());
  other = op;
  other.out.layout.dtype = other.pre.layout.dtype = DType::kF32;
  CHECK_FALSE(FusedKeyOf(other).has_value());
  // In FP8 the derivative is a kernel's behind the product, which looks at what it stores.
  for (const KeyScales scales : {KeyScales::kTensor, KeyScales::kVectors}) {
    other = Float8(DType::kBF16, scales, scales);
    other.epilogue = Epilogue::kGeluGrad;
    other.pre = other.out;
    REQUIRE(KeyOf(other).has_value());
    CHECK_FALSE(FusedKeyOf(other).has_value());
  }
}

TuningTable Example() {
  TuningTable table{.device = "A \"GPU\"", .library_version = "cuBLASLt 130100", .matmuls = {}};
  MatmulOp<Shape> biased = Matmul(DType::kBF16, DType::kBF16, 48, 80, 36);
  biased.bias = {DenseLayout(DType::kBF16, {80}), true};
  table.matmuls[KeyOf(biased).value()] = {std::string(128, 'a'), "id 66, tile 23", 12.25, 13.5};
  table.matmuls[KeyOf(Matmul(DType::kF32, DType::kF32, 7, 5, 3)).value()] = {std::string(128, '0'),
                                                                             "id 0", 1, 2};
  return table;
}

TEST_CASE("a tuning table survives its text") {
  const TuningTable table = Example();
  CHECK(TuningTable::FromText(table.ToText(), "test") == table);
  CHECK(TuningTable::FromText(TuningTable{}.ToText(), "test") == TuningTable{});
}

TEST_CASE("what was measured of each algorithm is kept, and decides nothing") {
  const TuningTable older = Example();
  CHECK(older.ToText().find("measured") == std::string::npos);
  CHECK(older.ToText().find("joules") == std::string::npos);
  TuningTable table = older;
  TunedMatmul& tuned = table.matmuls.begin()->second;
  tuned.measured = {{.description = "id 66, tile 23",
                     .microseconds = 12.5,
                     .hot_microseconds = 14.25,
                     .sm_mhz = 1410.0,
                     .millijoules = 9.75,
                     .millijoules_off = 0.125},
                    {.description = "id 67, tile 20", .microseconds = 13, .hot_microseconds = 15},
                    {.description = "id 68, tile 8", .microseconds = 20}};
  tuned.no_joules = "nvmlInit_v2: Driver Not Loaded";
  const std::string text = table.ToText();
  CHECK(TuningTable::FromText(text, "test") == table);
  CHECK_THAT(text, Catch::Contains(R"("measured":[{"description":"id 66, tile 23","us":12.5,)"
                                   R"("hot_us":14.25,"sm_mhz":1410.0,"mj":9.75,"mj_off":0.125},)"
                                   R"({"description":"id 67, tile 20","us":13.0,"hot_us":15.0},)"
                                   R"({"description":"id 68, tile 8","us":20.0}])"));
  CHECK(table.Hash() == older.Hash());
  for (auto [part, wrong] :
       {std::pair{"\"mj\":9.75", "\"mj\":\"9\""}, std::pair{"\"hot_us\":15.0", "\"hot_us\":[]"},
        std::pair{"\"us\":20.0", "\"u\":20.0"}}) {
    std::string broken = text;
    broken.replace(broken.find(part), std::string(part).size(), wrong);
    CHECK_THROWS_WITH(TuningTable::FromText(broken, "test"),
                      Catch::Contains("test is no tuning table: "));
  }
}

TEST_CASE("a table's hash is of what decides results, not of times") {
  TuningTable table = Example();
  const std::string hash = table.Hash();
  CHECK(hash.size() == 32);
  table.matmuls.begin()->second.microseconds = 99;
  CHECK(table.Hash() == hash);
  table.matmuls.begin()->second.algorithm[5] = 'b';
  CHECK(table.Hash() != hash);
  table = Example();
  table.device = "B";
  CHECK(table.Hash() != hash);
  table = Example();
  table.matmuls.erase(table.matmuls.begin());
  CHECK(table.Hash() != hash);
}

TEST_CASE("a product with GELU's gradient is an entry of its own, which older tables lack") {
  const MatmulKey product = KeyOf(WithGeluGrad(80)).value(),
                  fused = FusedKeyOf(WithGeluGrad(80)).value();
  TuningTable older{.device = "GPU", .library_version = "1", .matmuls = {}};
  older.matmuls[product] = {std::string(128, 'a'), "id 66", 12, 13};
  const std::string older_text = older.ToText();
  CHECK(older_text.find("gelu_grad") == std::string::npos);
  CHECK(TuningTable::FromText(older_text, "test") == older);
  TuningTable in_turn = older, at_once = older;
  in_turn.matmuls[fused] = {"", "product and kernel in turn", 20, 20};
  at_once.matmuls[fused] = {std::string(128, 'b'), "id 67", 15, 20};
  for (const TuningTable& table : {in_turn, at_once}) {
    CHECK(TuningTable::FromText(table.ToText(), "test") == table);
    CHECK(table.Hash() != older.Hash());
  }
  CHECK(in_turn.Hash() != at_once.Hash());
}

TEST_CASE("text that is no table is refused, naming where it came from") {
  const auto refuses = [](const std::string& text, const std::string& part) {
    INFO(text);
    try {
      TuningTable::FromText(text, "runs/a/tuning.json");
      CHECK(false);
    } catch (const Error& e) {
      CHECK(e.code() == ErrorCode::kData);
      CHECK_THAT(e.what(), Catch::Contains("runs/a/tuning.json is no tuning table: "));
      CHECK_THAT(e.what(), Catch::Contains(part));
    }
  };
  refuses("", "parse error");
  refuses("{}", "device");
  std::string text = Example().ToText();
  text.replace(text.find("\"bf16\""), 6, "\"b16\"");
  refuses(text, "'b16' is no dtype");
  text = Example().ToText();
  text.replace(text.find("\"bias\":"), 7, "\"gelu_grad\":1,\"bias\":");
  refuses(text, "type must be boolean");
  text = Example().ToText();
  text.replace(text.find("\"mnk\":[7,5,3]"), 13, "\"mnk\":[7,5]");
  refuses(text, "out of range");
  std::string twice = TuningTable::FromText(Example().ToText(), "test").ToText();
  const size_t begin = twice.find("  {\"mnk\""), end = twice.find(",\n", begin);
  twice.insert(begin, twice.substr(begin, end + 2 - begin));
  refuses(twice, "two entries for ");
}

}  // namespace
}  // namespace millrace
