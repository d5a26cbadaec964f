// Linears of one row in one kernel (row_chain.h): the bits of each by itself, whatever they read of
// each other, whoever else is on the device.
#include "kernels/cuda/matmul/row_chain.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/matmul/row_linear.h"
#include "kernels/cuda/tickets.h"
#include "kernels/cuda/views.h"
#include "tests/kernels/cuda/matmul_operands.h"

namespace millrace::test {
namespace {

using Op = RowLinearOp<TensorView>;
using Bits = std::vector<std::vector<uint16_t>>;

Layout Dense(std::initializer_list<int64_t> dims) { return DenseLayout(DType::kBF16, dims); }

class Chains {
 public:
  explicit Chains(EarlyLaunch early) { device_.Attached<cuda::LaunchPolicy>().early = early; }

  int64_t Pick(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }

  // One of the op's kinds of `columns` results, of x.
  Op Linear(const TensorView& x, int64_t columns, RowNorm norm, RowFinish finish, bool biased) {
    const int64_t depth = x.dim(1);
    Op op;
    op.norm = norm, op.finish = finish, op.constant = true, op.eps = 1e-3f;
    op.x = x;
    if (norm != RowNorm::kNone) op.norm_weight = operands_.Random(Dense({depth}));
    if (norm == RowNorm::kLayer) op.norm_bias = operands_.Random(Dense({depth}));
    int64_t lines = finish == RowFinish::kSwiglu ? 2 * columns : columns;
    if (finish == RowFinish::kRotate) {
      constexpr int64_t kHalf = 32, kPositions = 40;
      columns = lines = std::max<int64_t>(columns / (2 * kHalf), 1) * 2 * kHalf;
      op.turned = Pick(0, columns / (2 * kHalf));
      op.table = operands_.Random(DenseLayout(DType::kF32, {kPositions, kHalf, 2}));
      op.at = operands_.New(DenseLayout(DType::kI32, {1}));
      const auto position = static_cast<int32_t>(Pick(0, kPositions - 1));
      device_.CopyFromHost(op.at.data, &position, sizeof position, *stream_);
      stream_->Sync();
    }
    op.weight = operands_.Random(Dense({lines, depth}));
    if (biased) op.bias = operands_.Random(Dense({lines}));
    op.out = operands_.New(Dense({1, columns}));
    return op;
  }

  TensorView Random(std::initializer_list<int64_t> dims) { return operands_.Random(Dense(dims)); }
  void Set(const TensorView& view, int64_t element, uint16_t bits) {
    device_.CopyFromHost(view.data + 2 * element, &bits, sizeof bits, *stream_);
    stream_->Sync();
  }

  // A chain of any kinds; sums of residuals from outside and of those before.
  std::vector<Op> Any() {
    std::vector<Op> ops;
    TensorView x = operands_.Random(Dense({1, 8 * Pick(1, 512)})), last_sum;
    const int64_t count = Pick(2, cuda::kMostChain);
    for (int64_t i = 0; i < count; ++i) {
      const auto norm =
          x.dim(1) <= cuda::kMostRowNormInChain ? static_cast<RowNorm>(Pick(0, 2)) : RowNorm::kNone;
      Op op = Linear(x, 8 * Pick(1, Pick(0, 3) == 0 ? 2048 : 300), norm,
                     static_cast<RowFinish>(Pick(0, 3)), Pick(0, 1) == 1);
      if (Pick(0, 1) == 1) {
        const bool earlier = last_sum && last_sum.dim(1) == x.dim(1);
        op.residual = earlier ? last_sum : operands_.Random(x.layout);
        op.sum = last_sum = operands_.New(x.layout);
      }
      if (i + 1 == count && op.finish == RowFinish::kNone && Pick(0, 1) == 1)
        op.out = operands_.New(DenseLayout(DType::kF32, {1, op.out.dim(1)}));
      x = op.out;
      ops.push_back(op);
    }
    return ops;
  }

  // out (head) of a Llama's layers, of its sizes.
  std::vector<Op> Layer(int64_t d, int64_t ffn) {
    std::vector<Op> ops{
        Linear(operands_.Random(Dense({1, d})), d, RowNorm::kNone, RowFinish::kNone, false)};
    ops.push_back(Linear(ops[0].out, ffn, RowNorm::kRms, RowFinish::kSwiglu, false));
    ops[1].residual = operands_.Random(Dense({1, d})), ops[1].sum = operands_.New(Dense({1, d}));
    ops.push_back(Linear(ops[1].out, d, RowNorm::kNone, RowFinish::kNone, false));
    ops.push_back(Linear(ops[2].out, d + d / 2, RowNorm::kRms, RowFinish::kRotate, false));
    ops[3].residual = ops[1].sum, ops[3].sum = operands_.New(Dense({1, d}));
    return ops;
  }

  // Of results and sums, of which nothing is left.
  Bits Take(const std::vector<Op>& ops) {
    Bits all;
    for (const Op& op : ops)
      for (const TensorView& view : {op.out, op.sum}) {
        if (!view) continue;
        std::vector<uint16_t> bits(static_cast<size_t>(view.bytes() / 2));
        std::memcpy(bits.data(), operands_.OnHost(view).data, static_cast<size_t>(view.bytes()));
        all.push_back(std::move(bits));
        device_.EnqueueFill(view.data, std::byte{0xff}, view.bytes(), *stream_);
      }
    return all;
  }

  Bits Apart(const std::vector<Op>& ops) {
    for (const Op& op : ops) CudaKernels().row_linear(op, *stream_);
    return Take(ops);
  }
  // `next`: whose weights are fetched.
  void Launch(const std::vector<Op>& ops, Stream& stream, const std::vector<Op>& next = {}) {
    std::vector<cuda::OneRowArgs> linears, behind;
    for (const Op& op : ops) linears.push_back(cuda::OneRowArgsOf(op));
    for (const Op& op : next) behind.push_back(cuda::OneRowArgsOf(op));
    cuda::LaunchRowChain(linears, behind, words_.Of(ops.back().out.data), cuda::LaunchOn(stream));
  }

  CudaDevice& device() { return device_; }
  Stream& stream() { return *stream_; }

 private:
  CudaDevice device_{0};
  const std::unique_ptr<Stream> stream_ = device_.MakeStream(StreamRole::kCompute);
  DeviceOperands operands_{device_, *stream_};
  cuda::Tickets words_{device_};
  std::mt19937_64 random_{11};
};

bool Runs(CudaDevice& device) {
  if (cuda::HasRowChain(device.properties())) return true;
  WARN("skipped: no chain of linears on " << device.properties().name);
  return false;
}

TEST_CASE("linears in one kernel have the bits that each has by itself", "[gpu]") {
  Chains chains(EarlyLaunch::kOff);
  if (!Runs(chains.device())) return;
  for (int repeat = 0; repeat < 60; ++repeat) {
    const std::vector<Op> ops = chains.Any();
    INFO("chain " << repeat << " of " << ops.size() << ", from " << ops[0].x.dim(1));
    const Bits apart = chains.Apart(ops);
    for (const std::vector<Op>& next : {std::vector<Op>{}, ops}) {
      chains.Launch(ops, chains.stream(), next);
      CHECK(chains.Take(ops) == apart);
    }
  }
}

TEST_CASE("chains of a graph, one behind the other, have those bits", "[gpu]") {
  for (const EarlyLaunch early : {EarlyLaunch::kOff, EarlyLaunch::kEnd, EarlyLaunch::kBegin}) {
    Chains chains(early);
    if (!Runs(chains.device())) return;
    std::vector<std::vector<Op>> layers;
    std::vector<Bits> apart;
    for (size_t l = 0; l < 4; ++l) {
      const bool narrow = l % 2 == 1;
      layers.push_back(chains.Layer(narrow ? 512 : 2048, narrow ? 1536 : 8192));
      // Begins with what the one before has left.
      if (narrow) layers[l][0].x.data = layers[l - 1].back().out.data;
      apart.emplace_back();
    }
    for (size_t l = 0; l < 4; ++l)
      for (const Op& op : layers[l]) CudaKernels().row_linear(op, chains.stream());
    for (size_t l = 0; l < 4; ++l) apart[l] = chains.Take(layers[l]);
    const auto all = [&] {
      for (size_t l = 0; l < 4; ++l)
        chains.Launch(layers[l], chains.stream(), l < 3 ? layers[l + 1] : std::vector<Op>{});
    };
    all();  // loads the kernel
    chains.stream().Sync();
    chains.device().BeginCapture(chains.stream());
    all();
    const auto graph = chains.device().EndCapture(chains.stream());
    for (size_t l = 0; l < 4; ++l) CHECK(chains.Take(layers[l]) == apart[l]);
    for (int launch = 0; launch < 200; ++launch) graph->Launch(chains.stream());
    chains.stream().Sync();
    for (size_t l = 0; l < 4; ++l) CHECK(chains.Take(layers[l]) == apart[l]);
  }
}

TEST_CASE("the deepest rows fit, and infinities are where each by itself has them", "[gpu]") {
  Chains chains(EarlyLaunch::kOff);
  if (!Runs(chains.device())) return;
  for (const int64_t depth : {kMostRowDepth, kMostRowDepth - 8, int64_t{904}, int64_t{8}}) {
    INFO("depth " << depth);
    std::vector<Op> ops{
        chains.Linear(chains.Random({1, depth}), 256, RowNorm::kNone, RowFinish::kNone, false)};
    ops.push_back(chains.Linear(ops[0].out, 264, RowNorm::kNone, RowFinish::kGelu, true));
    for (const bool infinite : {false, true}) {
      if (infinite) chains.Set(ops[0].x, depth - 1, 0x7f80);
      const Bits apart = chains.Apart(ops);
      chains.Launch(ops, chains.stream());
      CHECK(chains.Take(ops) == apart);
    }
  }
}

TEST_CASE("a chain of much weight has the bits that each linear has by itself", "[gpu]") {
  Chains chains(EarlyLaunch::kOff);
  if (!Runs(chains.device())) return;
  // Of one buffer, which is as large as a fourth of what such a chain reads.
  std::vector<Op> ops{
      chains.Linear(chains.Random({1, 4096}), 8192, RowNorm::kRms, RowFinish::kGelu, true)};
  for (int i = 1; i < 4; ++i) {
    const int64_t columns = ops.back().x.dim(1);
    ops.push_back(chains.Linear(ops.back().out, 8, RowNorm::kNone, RowFinish::kNone, false));
    ops.back().weight = {ops[0].weight.data, Dense({columns, ops.back().x.dim(1)})};
    ops.back().out = chains.Random({1, columns});
  }
  const Bits apart = chains.Apart(ops);
  for (int again = 0; again < 3; ++again) {
    chains.Launch(ops, chains.stream(), ops);
    CHECK(chains.Take(ops) == apart);
  }
}

TEST_CASE("results may lie where what is no longer needed lay", "[gpu]") {
  Chains chains(EarlyLaunch::kOff);
  if (!Runs(chains.device())) return;
  std::vector<Op> ops = chains.Layer(2048, 8192);
  // down's results over those of out, and qkv's sum over up's: each is read before.
  ops[2].out.data = ops[3].x.data = ops[0].out.data;
  ops[3].residual = chains.Random({1, 2048});
  ops[3].sum.data = ops[1].sum.data;
  const Bits apart = chains.Apart(ops);
  for (int again = 0; again < 50; ++again) {
    chains.Launch(ops, chains.stream());
    CHECK(chains.Take(ops) == apart);
  }
}

TEST_CASE("chains on two streams do not keep each other waiting", "[gpu]") {
  for (const EarlyLaunch early : {EarlyLaunch::kEnd, EarlyLaunch::kBegin}) {
    Chains chains(early);
    if (!Runs(chains.device())) return;
    const std::vector<Op> one = chains.Layer(1024, 3072), two = chains.Layer(2048, 4096);
    const Bits apart_one = chains.Apart(one), apart_two = chains.Apart(two);
    const auto other = chains.device().MakeStream(StreamRole::kCompute);
    // Two chains of a graph, the second of which begins early.
    const auto graph_of = [&](const std::vector<Op>& ops, Stream& stream) {
      chains.Launch(ops, stream);
      stream.Sync();
      chains.device().BeginCapture(stream);
      for (int n = 0; n < 2; ++n) chains.Launch(ops, stream);
      return chains.device().EndCapture(stream);
    };
    const auto graph_one = graph_of(one, chains.stream()), graph_two = graph_of(two, *other);
    for (int launch = 0; launch < 500; ++launch) {
      graph_one->Launch(chains.stream());
      graph_two->Launch(*other);
      if (launch % 3 == 0) chains.Launch(one, chains.stream());
      if (launch % 5 == 0) chains.Launch(two, *other);
    }
    other->Sync();
    CHECK(chains.Take(one) == apart_one);
    CHECK(chains.Take(two) == apart_two);
  }
}

TEST_CASE("the kernel table joins what a gain comes of", "[gpu]") {
  Chains chains(EarlyLaunch::kOff);
  if (!Runs(chains.device())) return;
  const auto taken = [&](const std::vector<Op>& ops, const std::vector<Op>& next = {}) {
    std::vector<const Op*> rows, behind;
    for (const Op& op : ops) rows.push_back(&op);
    for (const Op& op : next) behind.push_back(&op);
    return CudaKernels().row_linears(rows, behind, chains.stream());
  };
  std::vector<Op> layer = chains.Layer(2048, 8192);
  const Bits apart = chains.Apart(layer);
  CHECK(taken(layer) == 4);
  CHECK(chains.Take(layer) == apart);
  CHECK(taken(layer, chains.Layer(2048, 8192)) == 4);
  CHECK(chains.Take(layer) == apart);
  layer.push_back(layer[0]);
  CHECK(taken(layer) == 4);
  CHECK(taken(chains.Layer(768, 3072)) == 0);  // too little
  layer[2].constant = false;
  CHECK(taken(layer) == 2);  // those ahead of it are enough
  layer[1].constant = false;
  CHECK(taken(layer) == 0);
  layer[1].constant = layer[2].constant = true, layer[0].in_order = true;
  CHECK(taken(layer) == 0);
}

}  // namespace
}  // namespace millrace::test
