// One row through a linear layer in order (RowLinearAttrs::in_order): the bits of the norm and of
// the product in order that it joins, of a row among many.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/ops/row_linear_ops.h"
#include "runtime/base/cuda/launch.h"
#include "tests/kernels/cuda/matmul_operands.h"

namespace millrace::test {
namespace {

constexpr int64_t kRows = 70;  // products of more rows than 64 are another kernel's

Layout Dense(std::initializer_list<int64_t> dims) { return DenseLayout(DType::kBF16, dims); }

TensorView TransposeOf(TensorView view) {
  std::swap(view.layout.dims[0], view.layout.dims[1]);
  std::swap(view.layout.strides[0], view.layout.strides[1]);
  return view;
}
TensorView RowOf(TensorView view, int64_t row) {
  view.data += row * view.stride(0) * 2;
  view.layout.dims[0] = 1;
  return view;
}

struct Sizes {
  int64_t columns, depth;
};
struct Joined {
  RowNorm norm;
  RowFinish finish;
  bool biased, residual, constant;
};

class Layer {
 public:
  explicit Layer(const Sizes& s) : s_(s) {
    x_ = operands_.Random(Dense({kRows, s.depth}));
    residual_ = operands_.Random(x_.layout);
    norm_weight_ = operands_.Random(Dense({s.depth}));
    norm_bias_ = operands_.Random(Dense({s.depth}));
    weight_ = operands_.Random(Dense({s.columns, s.depth}));
    bias_ = operands_.Random(Dense({s.columns}));
  }

  // Results of a row.
  struct Result {
    std::vector<uint16_t> out, sum;
  };

  // All rows, by ops of their own.
  void RunApart(const Joined& j) {
    all_out_ = operands_.New(Dense({kRows, s_.columns}));
    NormOp<TensorView> norm;
    norm.kind = j.norm == RowNorm::kLayer ? NormKind::kLayer : NormKind::kRms;
    norm.eps = kEps;
    norm.x = x_;
    all_sum_ = operands_.New(x_.layout);
    if (j.residual) norm.residual = residual_, norm.sum = all_sum_;
    norm.weight = norm_weight_;
    if (j.norm == RowNorm::kLayer) {
      norm.bias = norm_bias_;
      norm.mean = operands_.New(DenseLayout(DType::kF32, {kRows}));
    }
    norm.rstd = operands_.New(DenseLayout(DType::kF32, {kRows}));
    norm.out = operands_.New(x_.layout);
    CudaKernels().norm(norm, *stream_);
    MatmulOp<TensorView> product;
    product.in_order = true;
    product.a = norm.out, product.b = TransposeOf(weight_), product.out = all_out_;
    if (j.biased) product.bias = bias_;
    const bool gelu = j.finish == RowFinish::kGelu;
    product.epilogue = gelu && j.biased ? Epilogue::kBiasGelu
                       : gelu           ? Epilogue::kGelu
                       : j.biased       ? Epilogue::kBias
                                        : Epilogue::kNone;
    CudaKernels().matmul(product, *stream_);
  }
  Result Apart(int64_t row, bool residual) {
    return {BitsOf(RowOf(all_out_, row)),
            residual ? BitsOf(RowOf(all_sum_, row)) : std::vector<uint16_t>()};
  }

  // One row, by one op. wide: into f32, of whose elements these are the upper halves; the lower
  // ones are zero.
  Result Run(const Joined& j, int64_t row, bool wide = false) {
    RowLinearOp<TensorView> op;
    op.norm = j.norm, op.finish = j.finish, op.constant = j.constant;
    op.in_order = true;
    op.eps = kEps;
    op.x = RowOf(x_, row);
    if (j.residual) {
      op.residual = RowOf(residual_, row);
      op.sum = operands_.New(Dense({1, s_.depth}));
    }
    op.norm_weight = norm_weight_;
    if (j.norm == RowNorm::kLayer) op.norm_bias = norm_bias_;
    op.weight = weight_;
    if (j.biased) op.bias = bias_;
    op.out = operands_.New(DenseLayout(wide ? DType::kF32 : DType::kBF16, {1, s_.columns}));
    CudaKernels().row_linear(op, *stream_);
    Result result{BitsOf(op.out), op.sum ? BitsOf(op.sum) : std::vector<uint16_t>()};
    if (!wide) return result;
    std::vector<uint16_t> upper;
    for (size_t i = 0; i < result.out.size(); i += 2) {
      REQUIRE(result.out[i] == 0);
      upper.push_back(result.out[i + 1]);
    }
    return {upper, result.sum};
  }

 private:
  static constexpr float kEps = 1e-5f;

  std::vector<uint16_t> BitsOf(const TensorView& view) {
    std::vector<uint16_t> bits(static_cast<size_t>(view.bytes() / 2));
    device_.CopyToHost(bits.data(), view.data, view.bytes(), *stream_);
    return bits;
  }

  CudaDevice device_{0};
  std::unique_ptr<Stream> stream_ = device_.MakeStream(StreamRole::kCompute);
  DeviceOperands operands_{device_, *stream_};
  const Sizes s_;
  TensorView x_, residual_, norm_weight_, norm_bias_, weight_, bias_, all_out_, all_sum_;
};

std::vector<Joined> Variants() {
  std::vector<Joined> variants;
  int turn = 0;
  for (const RowNorm norm : {RowNorm::kLayer, RowNorm::kRms})
    for (const RowFinish finish : {RowFinish::kNone, RowFinish::kGelu})
      for (const bool biased : {false, true})
        for (const bool residual : {false, true})
          variants.push_back({norm, finish, biased, residual, turn++ % 3 != 0});
  return variants;
}

TEST_CASE("a row through a linear layer in order has the bits of its ops among many rows") {
  // One to four packs of a thread and one to four warps to a row; tiles of 8 to 64 columns that are
  // whole and that are not, and several to a block; depths that end within a box and within a
  // stage, and more stages than a ring has. Of 132 multiprocessors.
  const Sizes s = GENERATE(
      Sizes{768, 64}, Sizes{8, 8}, Sizes{2304, 768}, Sizes{3072, 768}, Sizes{768, 3072},
      Sizes{50304, 768}, Sizes{2048, 2048}, Sizes{8200, 2048}, Sizes{1000, 4096}, Sizes{200, 776},
      Sizes{1064, 328}, Sizes{17000, 72}, Sizes{2048, 4096}, Sizes{64, 3072}, Sizes{9000, 4096},
      Sizes{5120, 1280}, Sizes{6144, 4096}, Sizes{7000, 776}, Sizes{4104, 1160});
  Layer layer(s);
  for (const Joined& j : Variants()) {
    layer.RunApart(j);
    for (const int64_t row : {int64_t{0}, int64_t{37}, kRows - 1}) {
      CAPTURE(s.columns, s.depth, static_cast<int>(j.norm), static_cast<int>(j.finish), j.biased,
              j.residual, j.constant, row);
      const Layer::Result expected = layer.Apart(row, j.residual), got = layer.Run(j, row);
      CHECK(std::count(expected.out.begin(), expected.out.end(), 0xffff) == 0);
      CHECK(got.out == expected.out);
      CHECK(got.sum == expected.sum);
      if (j.finish == RowFinish::kNone) CHECK(layer.Run(j, row, true).out == expected.out);
    }
  }
}

// A graph whose kernels begin early: one that takes its time and writes the row last, then two
// layers, of which the second reads what the first has made.
TEST_CASE("rows in order wait for what they read") {
  constexpr int64_t kDepth = 768, kAhead = int64_t{6} << 20;
  CudaDevice device(0);
  const auto stream = device.MakeStream(StreamRole::kCompute);
  DeviceOperands operands(device, *stream);
  const TensorView wide = operands.New(DenseLayout(DType::kF32, {kAhead + kDepth})),
                   first = operands.Random(Dense({kDepth, kDepth})),
                   second = operands.Random(Dense({kDepth, kDepth})),
                   norm = operands.Random(Dense({kDepth}));
  std::vector<std::unique_ptr<Graph>> graphs;
  std::vector<TensorView> outs;
  for (const EarlyLaunch early : {EarlyLaunch::kEnd, EarlyLaunch::kBegin, EarlyLaunch::kOff}) {
    device.Attached<cuda::LaunchPolicy>().early = early;
    const TensorView narrow = operands.New(Dense({kAhead + kDepth}));
    RowLinearOp<TensorView> op;
    op.in_order = op.constant = true;
    op.norm = RowNorm::kRms;
    op.norm_weight = norm;
    op.x = {narrow.data + 2 * kAhead, Dense({1, kDepth})};
    op.weight = first;
    op.out = operands.New(Dense({1, kDepth}));
    RowLinearOp<TensorView> next = op;
    next.residual = op.x, next.x = op.out;
    next.sum = operands.New(Dense({1, kDepth}));
    next.weight = second;
    next.out = outs.emplace_back(operands.New(Dense({1, kDepth})));
    device.BeginCapture(*stream);
    CudaKernels().cast({{}, wide, narrow}, *stream);
    CudaKernels().row_linear(op, *stream);
    CudaKernels().row_linear(next, *stream);
    graphs.push_back(device.EndCapture(*stream));
  }
  std::vector<uint16_t> before;
  for (uint32_t step = 0; step < 40; ++step) {
    std::minstd_rand random(step + 1);
    std::vector<float> row(static_cast<size_t>(kDepth));
    for (float& value : row) value = static_cast<float>(random() % 2001) / 1000.0f - 1;
    device.CopyFromHost(wide.data + 4 * kAhead, row.data(), 4 * std::ssize(row), *stream);
    std::vector<std::vector<uint16_t>> got;
    for (size_t i = 0; i < graphs.size(); ++i) {
      graphs[i]->Launch(*stream);
      std::vector<uint16_t>& bits = got.emplace_back(static_cast<size_t>(kDepth));
      device.CopyToHost(bits.data(), outs[i].data, 2 * std::ssize(bits), *stream);
    }
    REQUIRE(got[0] == got[2]);
    REQUIRE(got[1] == got[2]);
    CHECK(got[2] != before);
    before = got[2];
  }
}

}  // namespace
}  // namespace millrace::test
