// Products of matrices and column sums on a GPU: the contract of the kernel table, then what the
// contract's small shapes do not reach.
#include "kernels/cuda/matmul/matmul.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <numbers>
#include <random>
#include <set>

#include "kernels/cuda/elementwise/activation.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/matmul/matmul_plans.h"
#include "kernels/cuda/tuning/hot_turns.h"
#include "kernels/cuda/tuning/tuning.h"
#include "kernels/ops/matmul_key.h"
#include "runtime/base/error.h"
#include "tests/kernels/contract/contract.h"
#include "tests/kernels/cuda/matmul_operands.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

KernelTable Table() {
  KernelTable table;
  table.matmul = CudaMatmul;
  table.column_sum = CudaColumnSum;
  table.activation = CudaActivation;
  table.activation_grad = CudaActivationGrad;
  return table;
}

struct Sizes {
  int64_t m, n, k;
};

struct Gpu {
  CudaDevice device{0};
  std::unique_ptr<Stream> stream = device.MakeStream(StreamRole::kCompute);
  KernelTable table = Table();
  Subject subject{table, device, *stream, Backend::kCuda, 256};
  DeviceOperands operands{device, *stream};
};

constexpr int kSamples = 400;

// Elements (i, j) of a product picked at random, copied to `got` [kSamples], and their double
// reference; `old` is the destination before an accumulating product. All on the host.
// `before_bias`: half an ulp of what a product is rounded to before the bias is added, relative.
Reference Samples(const MatmulOp<TensorView>& op, const TensorView& result, const TensorView* old,
                  const TensorView& got, double before_bias = 0) {
  std::mt19937_64 random(5);
  Reference reference;
  for (int64_t sample = 0; sample < kSamples; ++sample) {
    // The corners first: the last row and column are where a tile is cut off.
    const int64_t i =
        sample < 4 ? (sample / 2) * (result.dim(0) - 1) : Pick(random, 0, result.dim(0) - 1);
    const int64_t j =
        sample < 4 ? (sample % 2) * (result.dim(1) - 1) : Pick(random, 0, result.dim(1) - 1);
    SumOf sum;
    for (int64_t k = 0; k < op.a.dim(1); ++k) sum.Add(Get(op.a, i, k) * Get(op.b, k, j));
    const double rounding = before_bias * (std::abs(sum.value) + sum.bound());
    if (op.bias) sum.Add(Get(op.bias, j));
    if (old != nullptr) sum.Add(Get(*old, i, j));
    reference.push_back({sum.value, sum.bound(2) + rounding});
    Set(got, {sample}, Get(result, i, j));
  }
  return reference;
}

void CheckSamples(const MatmulOp<TensorView>& op, const TensorView& result, const TensorView* old) {
  Memory memory;
  const TensorView got = memory.New(result.dtype(), {kSamples});
  CheckNear(got, Samples(op, result, old, got), "sampled product");
}

// As the contract allows it where a bias is added to a bf16 result; says whether
// that allowance was needed.
void CheckBiased(const MatmulOp<TensorView>& op, const TensorView& result) {
  Memory memory;
  const TensorView got = memory.New(DType::kBF16, {kSamples});
  CheckNear(got, Samples(op, result, nullptr, got, 0x1p-8), "sampled product with bias");
  const Reference once = Samples(op, result, nullptr, got);
  int beyond = 0;
  for (int64_t i = 0; i < kSamples; ++i) {
    const Expected& e = once[static_cast<size_t>(i)];
    const double allowed = e.bound + 0x1p-8 * (std::abs(e.value) + e.bound);
    beyond += std::abs(Get(got, Index{i}) - e.value) > allowed;
  }
  WARN(
      "bf16 " << result.dim(0) << " x " << result.dim(1) << " x " << op.a.dim(1) << " + bias: "
              << beyond << " of " << kSamples << " samples are further off than one rounding: "
              << (beyond > 0 ? "the product is rounded before the bias is added" : "rounded once"));
}

// round(old + product) or round(product), from f32 values on the host.
TensorView RoundedOnce(Memory& memory, const TensorView& product, const TensorView* old,
                       DType dtype) {
  const TensorView rounded = memory.New(dtype, {product.dim(0), product.dim(1)});
  ForEach(rounded.layout, [&](const Index& i) {
    const float value = static_cast<float>(Get(product, i));
    Set(rounded, i, old != nullptr ? static_cast<float>(Get(*old, i)) + value : value);
  });
  return rounded;
}

MatmulOp<TensorView> OnHost(DeviceOperands& operands, const MatmulOp<TensorView>& op) {
  MatmulOp<TensorView> host = op;
  for (TensorView* view : {&host.a, &host.b, &host.bias, &host.out, &host.pre})
    if (*view) *view = operands.OnHost(*view);
  return host;
}

// The GEMMs of a GPT-2 124M layer, and some that no tile divides.
const std::vector<ProductShape> kProducts = {
    {DType::kBF16, DType::kBF16, 4096, 2304, 768, false, true},   // forward
    {DType::kBF16, DType::kBF16, 4096, 768, 3072, false, false},  // gradient of the input
    {DType::kBF16, DType::kF32, 3072, 768, 4096, true, false},    // gradient of the weight
    {DType::kBF16, DType::kBF16, 2304, 768, 4096, true, false},   // the same, accumulated in bf16
    {DType::kBF16, DType::kBF16, 1000, 5003, 768, false, true},   // logits of an odd vocabulary
    {DType::kBF16, DType::kF32, 5003, 768, 1000, true, false},    // and the gradient of its table
    {DType::kF32, DType::kF32, 1024, 2304, 768, false, true},
    {DType::kF32, DType::kF32, 2304, 768, 1024, true, false},
    {DType::kF32, DType::kBF16, 3000, 2003, 65, true, false},  // two tiles through scratch
};

TEST_CASE("matmul") { MatmulContract(Gpu().subject); }
TEST_CASE("matmul multiplies by the derivative of GELU") { MatmulGeluGradContract(Gpu().subject); }
TEST_CASE("matmul adds the complete product") { MatmulUpdateContract(Gpu().subject); }
TEST_CASE("column_sum") { ColumnSumContract(Gpu().subject); }

TEST_CASE("products at the sizes of models, overwriting and accumulating") {
  Gpu gpu;
  for (const ProductShape& product : kProducts) {
    for (const Update update : {Update::kOverwrite, Update::kAccumulate}) {
      MatmulOp<Shape> shape = ShapesOf(product);
      shape.update = update;
      CAPTURE(product.m, product.n, product.k, Name(product.operands), Name(product.result),
              update == Update::kAccumulate);
      DeviceOperands operands(gpu.device, *gpu.stream);
      const MatmulOp<TensorView> op = operands.Make(shape);
      const TensorView old = operands.OnHost(op.out);
      CudaMatmul(op, *gpu.stream);
      const MatmulOp<TensorView> host = OnHost(operands, op);
      CheckSamples(host, host.out, update == Update::kAccumulate ? &old : nullptr);
      if (update == Update::kOverwrite) continue;

      // The bits of a f32 temporary, added here.
      MatmulOp<TensorView> alone = op;
      alone.update = Update::kOverwrite;
      alone.out = operands.New(DenseLayout(DType::kF32, {product.m, product.n}));
      CudaMatmul(alone, *gpu.stream);
      Memory memory;
      const TensorView temporary = operands.OnHost(alone.out);
      CHECK(SameBits(RoundedOnce(memory, temporary, &old, product.result), host.out));
      MatmulOp<TensorView> once = op;
      once.update = Update::kOverwrite;
      once.rounding = Rounding::kOnce;
      once.out = operands.New(op.out.layout);
      CudaMatmul(once, *gpu.stream);
      CHECK(SameBits(RoundedOnce(memory, temporary, nullptr, product.result),
                     operands.OnHost(once.out)));
    }
  }
}

// A weight gradient of microbatches, as the three places that a plan may give it: in the flat
// gradient, in a part of its dtype, and in a f32 temporary that a concat adds.
TEST_CASE("a bf16 gradient has the same bits summed in place and through f32 temporaries") {
  Gpu gpu;
  const auto [m, n, k] =
      GENERATE(Sizes{2304, 768, 4096}, Sizes{3072, 768, 1000}, Sizes{1003, 517, 301});
  CAPTURE(m, n, k);
  MatmulOp<Shape> shape = ShapesOf({DType::kBF16, DType::kBF16, m, n, k, true, false});
  shape.rounding = Rounding::kOnce;
  const MatmulOp<TensorView> direct = gpu.operands.Make(shape);
  // In a flat gradient a parameter begins at a multiple of 256 bytes.
  const TensorView flat = gpu.operands.New(DenseLayout(DType::kBF16, {m * n + 128}));
  const TensorView slice{flat.data + 256, DenseLayout(DType::kBF16, {m * n})};
  MatmulOp<TensorView> temporary = direct;
  temporary.out = gpu.operands.New(DenseLayout(DType::kF32, {m, n}));
  for (int microbatch = 0; microbatch < 3; ++microbatch) {
    MatmulOp<TensorView> product = direct;
    product.update = microbatch == 0 ? Update::kOverwrite : Update::kAccumulate;
    temporary.a = product.a = gpu.operands.Random(shape.a.layout);
    temporary.b = product.b = gpu.operands.Random(shape.b.layout);
    CudaMatmul(product, *gpu.stream);
    CudaMatmul(temporary, *gpu.stream);
    ConcatOp<TensorView> concat;
    concat.x = {temporary.out.data, DenseLayout(DType::kF32, {m * n})};
    concat.out = slice;
    concat.update = product.update;
    CudaConcat(concat, *gpu.stream);
    CHECK(SameBits(gpu.operands.OnHost(TensorView{slice.data, direct.out.layout}),
                   gpu.operands.OnHost(direct.out)));
  }
}

TEST_CASE("a bias is added to a bf16 product within the bound of two roundings") {
  Gpu gpu;
  const auto [m, n, k] = GENERATE(Sizes{4096, 2304, 768}, Sizes{4096, 768, 3072},
                                  Sizes{1024, 12288, 4096}, Sizes{4096, 2308, 768},
                                  Sizes{4096, 2304, 772}, Sizes{1000, 5003, 768}, Sizes{65, 5, 33});
  MatmulOp<Shape> shape = ShapesOf({DType::kBF16, DType::kBF16, m, n, k, false, true});
  shape.epilogue = Epilogue::kBias;
  shape.bias = {DenseLayout(DType::kBF16, {n}), true};
  const MatmulOp<TensorView> op = gpu.operands.Make(shape);
  CudaMatmul(op, *gpu.stream);
  const MatmulOp<TensorView> host = OnHost(gpu.operands, op);
  CheckBiased(host, host.out);
}

TEST_CASE("bias and GELU at the sizes of models") {
  Gpu gpu;
  MatmulOp<Shape> shape = ShapesOf({DType::kBF16, DType::kBF16, 4096, 3072, 768, false, true});
  shape.epilogue = Epilogue::kBiasGelu;
  shape.bias = {DenseLayout(DType::kBF16, {3072}), true};
  shape.pre = shape.out;
  const MatmulOp<TensorView> op = gpu.operands.Make(shape);
  CudaMatmul(op, *gpu.stream);
  const MatmulOp<TensorView> host = OnHost(gpu.operands, op);
  CheckBiased(host, host.pre);

  // Recomputed from the stored value before it, and without storing that value.
  ActivationOp<TensorView> again;
  again.kind = ActivationKind::kGelu;
  again.x = op.pre;
  again.out = gpu.operands.New(op.out.layout);
  CudaActivation(again, *gpu.stream);
  CHECK(SameBits(gpu.operands.OnHost(again.out), host.out));
  MatmulOp<TensorView> in_place = op;
  in_place.pre = {};
  in_place.out = gpu.operands.New(op.out.layout);
  CudaMatmul(in_place, *gpu.stream);
  CHECK(SameBits(gpu.operands.OnHost(in_place.out), host.out));
}

// What tanh-GELU multiplies a gradient by.
double GeluSlope(double x) {
  const double c = std::sqrt(2 / std::numbers::pi), t = std::tanh(c * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}

TEST_CASE("a library that is told to multiplies by the derivative of GELU") {
  Gpu gpu;
  MatmulOp<Shape> shape = ShapesOf({DType::kBF16, DType::kBF16, 4096, 3072, 768, false, false});
  shape.epilogue = Epilogue::kGeluGrad;
  shape.pre = shape.out;
  const MatmulKey key = FusedKeyOf(shape).value();
  TuneOptions options;
  options.rounds = 3;
  options.round_ms = 0.3;
  TuningTable table = Tune(gpu.device, {shape}, options);
  REQUIRE(table.matmuls.size() == 2);
  WARN(ToString(key) << ": " << table.matmuls.at(key).microseconds << " us, product and kernel "
                     << table.matmuls.at(key).default_microseconds << " us; "
                     << table.matmuls.at(key).description);
  CHECK(table.matmuls.at(key).microseconds <= table.matmuls.at(key).default_microseconds);
  MatmulPlans& plans = gpu.device.Attached<MatmulPlans>();
  const MatmulOp<TensorView> op = gpu.operands.Make(shape);
  MatmulOp<TensorView> separate = op, again = op;
  separate.out = gpu.operands.New(op.out.layout);
  again.out = gpu.operands.New(op.out.layout);
  CHECK_FALSE(plans.RunWithGeluGrad(op, AsCuda(*gpu.stream).get()));
  CudaMatmul(separate, *gpu.stream);

  // Whatever is faster: the library's first suggestion.
  table.matmuls.at(key).algorithm =
      HexOf(MatmulProblem(key).Suggestions(plans.handle(), 1).front().algo);
  plans.Install(table);
  CHECK(plans.RunWithGeluGrad(op, AsCuda(*gpu.stream).get()));
  CudaMatmul(again, *gpu.stream);
  const MatmulOp<TensorView> host = OnHost(gpu.operands, op);
  CHECK(SameBits(host.out, gpu.operands.OnHost(again.out)));

  Memory memory;
  for (const TensorView& result : {host.out, gpu.operands.OnHost(separate.out)}) {
    const TensorView got = memory.New(DType::kBF16, {kSamples});
    Reference product = Samples(host, result, nullptr, got, 0x1p-8);
    std::mt19937_64 random(5);  // picks what Samples picked
    for (int64_t sample = 0; sample < kSamples; ++sample) {
      const int64_t i =
          sample < 4 ? (sample / 2) * (result.dim(0) - 1) : Pick(random, 0, result.dim(0) - 1);
      const int64_t j =
          sample < 4 ? (sample % 2) * (result.dim(1) - 1) : Pick(random, 0, result.dim(1) - 1);
      Expected& e = product[static_cast<size_t>(sample)];
      // A hardware tanh is off by 2^-11; for |x| < 1 the slope changes by at most 1.5 times that.
      const double slope = GeluSlope(Get(host.pre, i, j)), off = 1.5 * 0x1p-11 * std::abs(e.value);
      e = {e.value * slope, e.bound * std::abs(slope) + off};
    }
    CheckNear(got, product, "sampled product times GELU's derivative");
  }
}

TEST_CASE("a captured product replays with the bits of the eager one") {
  Gpu gpu;
  for (const ProductShape& product : kProducts) {
    CAPTURE(product.m, product.n, product.k);
    MatmulOp<Shape> shape = ShapesOf(product);
    shape.update = Update::kAccumulate;
    DeviceOperands operands(gpu.device, *gpu.stream);
    const MatmulOp<TensorView> op = operands.Make(shape);
    MatmulOp<TensorView> replayed = op;
    replayed.out = operands.Copy(op.out);
    CudaMatmul(op, *gpu.stream);
    gpu.stream->Sync();
    gpu.device.BeginCapture(*gpu.stream);
    CudaMatmul(replayed, *gpu.stream);
    const std::unique_ptr<Graph> graph = gpu.device.EndCapture(*gpu.stream);
    graph->Launch(*gpu.stream);
    const TensorView once = operands.OnHost(replayed.out);
    CHECK(SameBits(once, operands.OnHost(op.out)));
    graph->Launch(*gpu.stream);  // beta is 1: another replay adds another product
    CHECK_FALSE(SameBits(operands.OnHost(replayed.out), once));
  }
}

TEST_CASE("a tuned product is right, keeps its bits and its update, and survives text") {
  Gpu gpu;
  std::vector<MatmulOp<Shape>> shapes;
  for (const ProductShape& product : kProducts) shapes.push_back(ShapesOf(product));
  shapes.push_back(shapes.front());
  TuneOptions options;
  options.rounds = 3;
  options.round_ms = 0.3;
  const TuningTable table = Tune(gpu.device, shapes, options);
  const std::set<MatmulKey> hot = LargestProducts(shapes, options.hot_products, options.hot_share);
  CHECK(!hot.empty());
  CHECK(table.matmuls.size() == kProducts.size() - 1);  // one of them goes by tiles
  const TuningTable read = TuningTable::FromText(table.ToText(), "test");
  CHECK(read == table);
  for (const auto& [key, tuned] : table.matmuls) {
    INFO(ToString(key) << ": " << tuned.description);
    CHECK(tuned.microseconds > 0);
    CHECK(tuned.microseconds <= tuned.default_microseconds);
    REQUIRE(!tuned.measured.empty());
    const MeasuredAlgorithm& of_default = tuned.measured.front();
    CHECK(of_default.hot_microseconds.has_value() == hot.contains(key));
    CHECK(tuned.default_microseconds ==
          of_default.hot_microseconds.value_or(of_default.microseconds));
    // No candidate that decides is faster than what was chosen by more than the noise.
    for (const MeasuredAlgorithm& one : tuned.measured)
      if (one.hot_microseconds.has_value() == hot.contains(key))
        CHECK(tuned.microseconds <= 1.02 * one.hot_microseconds.value_or(one.microseconds));
    CHECK(of_default.millijoules.has_value() == tuned.no_joules.empty());
    if (!hot.contains(key)) continue;
    WARN(ToString(key) << ": " << tuned.no_joules);
    for (const MeasuredAlgorithm& one : tuned.measured) {
      WARN(one.description << ": " << one.microseconds << " us, hot "
                           << one.hot_microseconds.value_or(-1) << " us at "
                           << one.sm_mhz.value_or(-1) << " MHz, " << one.millijoules.value_or(-1)
                           << " mJ +-" << one.millijoules_off);
      // Between nothing and what no board can draw.
      if (!one.millijoules) continue;
      CHECK(*one.millijoules > 0);
      CHECK(*one.millijoules < 2 * *one.hot_microseconds);  // 2 kW
      // Back to back: not with the host's readings between.
      CHECK(*one.hot_microseconds < 2 * one.microseconds);
      CHECK(one.millijoules_off < 0.2 * *one.millijoules);
    }
  }
  gpu.device.Attached<MatmulPlans>().Install(read);
  for (const MatmulOp<Shape>& shape : shapes) {
    DeviceOperands operands(gpu.device, *gpu.stream);
    MatmulOp<TensorView> op = operands.Make(shape);
    CudaMatmul(op, *gpu.stream);
    const MatmulOp<TensorView> host = OnHost(operands, op);
    INFO(ToString(shape.out.layout));
    CheckSamples(host, host.out, nullptr);
    MatmulOp<TensorView> again = op;
    again.out = operands.New(op.out.layout);
    gpu.device.EnqueueFill(op.scratch.data, std::byte{0x41}, op.scratch.bytes(), *gpu.stream);
    CudaMatmul(again, *gpu.stream);
    CHECK(SameBits(operands.OnHost(again.out), host.out));
    if (op.out.dtype() != DType::kF32) continue;
    MatmulOp<Shape> bf16_shape = shape;
    bf16_shape.out.layout.dtype = DType::kBF16;
    bf16_shape.rounding = Rounding::kOnce;
    CHECK(KeyOf(bf16_shape) == KeyOf(shape));
    MatmulOp<TensorView> once = operands.Make(bf16_shape);
    once.a = op.a, once.b = op.b;
    CudaMatmul(once, *gpu.stream);
    Memory memory;
    CHECK(
        SameBits(RoundedOnce(memory, host.out, nullptr, DType::kBF16), operands.OnHost(once.out)));
    again.update = Update::kAccumulate;  // p + p is exact
    CudaMatmul(again, *gpu.stream);
    const TensorView doubled = operands.OnHost(again.out);
    ForEach(doubled.layout, [&](const Index& i) { Set(doubled, i, Get(doubled, i) / 2); });
    CHECK(SameBits(doubled, host.out));
  }
}

TEST_CASE(
    "a table of another device or library, or with an algorithm that is refused, is not "
    "installed") {
  Gpu gpu;
  MatmulPlans& plans = gpu.device.Attached<MatmulPlans>();
  TuneOptions options;
  options.rounds = 1;
  options.round_ms = 0.1;
  const MatmulOp<Shape> shape = ShapesOf(kProducts.front());
  const TuningTable table = Tune(gpu.device, {shape}, options);
  const auto refuses = [&](const TuningTable& wrong, const std::string& part) {
    try {
      plans.Install(wrong);
      CHECK(false);
    } catch (const Error& e) {
      CHECK(e.code() == ErrorCode::kInvalidArgument);
      CHECK_THAT(e.what(), Catch::Contains(part));
    }
  };
  TuningTable wrong = table;
  wrong.device = "another GPU";
  refuses(wrong, "another GPU");
  wrong = table;
  wrong.library_version = "cuBLASLt 1";
  refuses(wrong, "cuBLASLt 1;");
  wrong = table;

  const auto& [key, tuned] = *table.matmuls.begin();
  cublasLtMatmulAlgo_t algo = MatmulProblem(key).FromHex(plans.handle(), tuned.algorithm).algo;
  const uint32_t tile = CUBLASLT_MATMUL_TILE_8x8;  // which no kernel for tensor cores has
  REQUIRE(cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile,
                                               sizeof tile) == CUBLAS_STATUS_SUCCESS);
  wrong.matmuls.at(key).algorithm = HexOf(algo);
  refuses(wrong, ToString(key));
  wrong.matmuls.at(key).algorithm = "0123";
  refuses(wrong, "128 hex digits");
  plans.Install(table);
}

TEST_CASE("operands that break what their strides promise are refused") {
  Gpu gpu;
  MatmulOp<TensorView> op =
      gpu.operands.Make(ShapesOf({DType::kBF16, DType::kBF16, 64, 64, 64, false, true}));
  op.a.data += 2;
  CHECK_THROWS_WITH(CudaMatmul(op, *gpu.stream), Catch::Contains("is not aligned to 16 bytes"));
}

TEST_CASE("column sums at the sizes of models") {
  Gpu gpu;
  const auto sums = [&](DType dtype, int64_t rows, int64_t columns, int64_t stride) {
    CAPTURE(Name(dtype), rows, columns, stride);
    DeviceOperands operands(gpu.device, *gpu.stream);
    ColumnSumOp<Shape> shape;
    shape.x = {DenseLayout(dtype, {rows, columns}), true};
    shape.x.layout.strides[0] = stride;
    shape.out = {DenseLayout(DType::kF32, {columns}), true};
    const ColumnSumOp<TensorView> op = operands.Make(shape);
    CudaColumnSum(op, *gpu.stream);
    const TensorView x = operands.OnHost(op.x), out = operands.OnHost(op.out);
    Reference reference;
    for (int64_t c = 0; c < columns; ++c) {
      SumOf sum;
      for (int64_t r = 0; r < rows; ++r) sum.Add(Get(x, r, c));
      reference.push_back({sum.value, sum.bound()});
    }
    CheckNear(out, reference, "column sums");
    // The same values in rows that are not aligned to a vector.
    if (stride % 8 != 0) return;
    ColumnSumOp<Shape> odd_shape = shape;
    odd_shape.x.layout.strides[0] = stride + 1;
    const ColumnSumOp<TensorView> odd = operands.Make(odd_shape);
    const TensorView odd_x = operands.OnHost(odd.x);
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(AddressOf(odd_x, {r, 0}), AddressOf(x, {r, 0}),
                  static_cast<size_t>(columns * Bytes(dtype)));
    gpu.device.CopyFromHost(odd.x.data, odd_x.data, odd.x.layout.span_bytes(), *gpu.stream);
    CudaColumnSum(odd, *gpu.stream);
    CHECK(SameBits(operands.OnHost(odd.out), out));
  };
  sums(DType::kBF16, 16384, 768, 768);
  sums(DType::kBF16, 8192, 2304, 2304);
  sums(DType::kBF16, 5000, 776, 800);
  sums(DType::kF32, 8192, 768, 768);
  sums(DType::kBF16, 3001, 101, 101);
  sums(DType::kF32, 3001, 101, 103);
}

}  // namespace
}  // namespace millrace::test
