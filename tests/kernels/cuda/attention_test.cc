// Attention on a GPU: the contract of the kernel table by each implementation, then what its
// small shapes do not reach: lengths of real models, gradients cut into several calls, bits
// that repeat, captured graphs.
#include "kernels/cuda/attention/attention.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "kernels/cuda/attention/attention_cudnn.h"
#include "kernels/cuda/attention/attention_own.h"
#include "kernels/cuda/attention/attention_rows.h"
#include "kernels/cuda/attention/attention_turns.h"
#include "kernels/cuda/views.h"
#include "kernels/ops/attention_choice.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/error.h"
#include "tests/kernels/contract/contract.h"
#include "tests/kernels/cuda/attention_samples.h"

namespace millrace::test {
namespace {

using cuda::AttentionKernel;

struct ContractGpu {
  explicit ContractGpu(std::optional<AttentionKernel> kernel, int64_t alignment)
      : table(TableOf(kernel)),
        subject{table, gpu.device, *gpu.stream, Backend::kCuda, alignment} {}
  Gpu gpu;
  KernelTable table;
  Subject subject;
};

// Else says so.
bool HasInTurn() {
  const CudaDevice device(0);
  const cudaDeviceProp& properties = device.properties();
  if (cuda::HasInTurn(properties.major, properties.minor)) return true;
  WARN("skipped: no attention by warpgroups on " << device.name());
  return false;
}

TEST_CASE("our own attention computes in f32 whatever the shape, strides and dtypes") {
  AttentionContract(ContractGpu(AttentionKernel::kOwn, 0).subject, AttentionKernel::kOwn);
}
TEST_CASE("the gradient of our own attention") {
  AttentionGradContract(ContractGpu(AttentionKernel::kOwn, 0).subject, AttentionKernel::kOwn);
}
TEST_CASE("cuDNN's attention: bf16, head dimensions in eights, any length") {
  AttentionContract(ContractGpu(AttentionKernel::kCudnn, 16).subject, AttentionKernel::kCudnn);
}
TEST_CASE("the gradient of cuDNN's attention") {
  AttentionGradContract(ContractGpu(AttentionKernel::kCudnn, 16).subject, AttentionKernel::kCudnn);
}
TEST_CASE("the gradient in turn: bf16, head dimensions 64 and 128, any length") {
  if (!HasInTurn()) return;
  AttentionGradContract(ContractGpu(AttentionKernel::kInTurn, 16).subject,
                        AttentionKernel::kInTurn);
}
TEST_CASE("attention by rows: bf16, head dimensions 64 and 128, any length") {
  if (!HasInTurn()) return;
  AttentionContract(ContractGpu(AttentionKernel::kRows, 16).subject, AttentionKernel::kRows);
}
TEST_CASE("cuDNN's attention in f16, and our own", "[f16]") {
  const F16ForBF16 in_f16;
  for (const auto kernel : {AttentionKernel::kCudnn, AttentionKernel::kOwn}) {
    const ContractGpu gpu(kernel, kernel == AttentionKernel::kCudnn ? 16 : 0);
    AttentionContract(gpu.subject, kernel);
    AttentionGradContract(gpu.subject, kernel);
  }
}
TEST_CASE("attention by the implementation that the shape chooses") {
  AttentionContract(ContractGpu({}, 16).subject);
  AttentionGradContract(ContractGpu({}, 16).subject);
}

TEST_CASE("lengths of real models, against double on sampled rows") {
  const DType dtype = GENERATE(DType::kF32, DType::kBF16);
  for (AttentionSize size : {AttentionSize{2, 1024, 12, 12, 64}, AttentionSize{1, 2048, 8, 2, 128},
                             AttentionSize{2, 1000, 6, 3, 96}, AttentionSize{1, 333, 4, 1, 256}}) {
    size.dtype = dtype;
    Gpu gpu;
    const AttentionOps ops = MakeAttention(gpu.operands, size);
    const auto kernel = cuda::ChooseAttention(ShapesOf(ops.grad)).kernel;
    REQUIRE(kernel == (dtype == DType::kF32                        ? AttentionKernel::kOwn
                       : size.depth % 64 == 0 && size.depth <= 128 ? AttentionKernel::kInTurn
                                                                   : AttentionKernel::kCudnn));
    gpu.Run(TableOf({}), ops);
    INFO("T " << size.length << " D " << size.depth << " " << Name(dtype));
    CheckSamples(OnHost(gpu.operands, ops.grad), dtype == DType::kF32 ? kF32 : kTensorCores);
  }
}

// |a - b| / |b|, over all elements.
double Difference(const TensorView& a, const TensorView& b) {
  double difference = 0, norm = 0;
  ForEach(a.layout, [&](const Index& i) {
    const double x = Get(a, i), y = Get(b, i);
    difference += (x - y) * (x - y);
    norm += y * y;
  });
  return std::sqrt(difference / norm);
}

void CheckClose(const AttentionGradOp<TensorView>& a, const AttentionGradOp<TensorView>& b,
                double bound) {
  CHECK(Difference(a.lse, b.lse) <= 0x1p-16);
  CHECK(Difference(a.out, b.out) <= bound);
  CHECK(Difference(a.d_q, b.d_q) <= bound);
  CHECK(Difference(a.d_k, b.d_k) <= bound);
  CHECK(Difference(a.d_v, b.d_v) <= bound);
}

// Errors of a few roundings to bf16, each at most 2^-8 of its term and of any sign: relative to all
// elements they stay well below 2^-6, while a wrong mask, scale or head does not.
constexpr double kFewRoundings = 0x1p-6;

TEST_CASE("cuDNN and our own kernels agree on the same bf16 data") {
  for (const AttentionSize& size :
       {AttentionSize{2, 256, 6, 6, 64}, AttentionSize{2, 300, 8, 2, 128},
        AttentionSize{3, 129, 6, 3, 40}}) {
    Gpu gpu;
    const AttentionOps cudnn = MakeAttention(gpu.operands, size);
    const AttentionOps own = Again(gpu.operands, cudnn, size);
    gpu.Run(TableOf(AttentionKernel::kCudnn), cudnn);
    gpu.Run(TableOf(AttentionKernel::kOwn), own);
    INFO("T " << size.length << " D " << size.depth);
    CheckClose(OnHost(gpu.operands, cudnn.grad), OnHost(gpu.operands, own.grad), kFewRoundings);
    if (size.depth % 64 != 0 || !HasInTurn()) continue;
    const AttentionOps in_turn = Again(gpu.operands, cudnn, size);
    gpu.Run(TableOf(AttentionKernel::kInTurn), in_turn);
    CheckClose(OnHost(gpu.operands, in_turn.grad), OnHost(gpu.operands, own.grad), kFewRoundings);
    const AttentionOps rows = Again(gpu.operands, cudnn, size);
    gpu.Run(TableOf(AttentionKernel::kRows), rows);
    CheckClose(OnHost(gpu.operands, rows.grad), OnHost(gpu.operands, own.grad), kFewRoundings);
  }
}

// Several sets of heads, groups of them, tiles and keys beyond the end, fewer units than blocks and
// more.
constexpr AttentionSize kByWarpgroups[] = {
    {2, 1024, 12, 12, 64}, {1, 2048, 8, 2, 128}, {3, 1000, 6, 3, 64}, {2, 1100, 10, 1, 128},
    {40, 257, 6, 6, 64},   {5, 64, 3, 3, 128},   {4, 3, 4, 2, 64},    {70, 1030, 3, 3, 64}};

TEST_CASE("attention by rows, against double on sampled rows, and a row alone") {
  if (!HasInTurn()) return;
  for (const AttentionSize& size : kByWarpgroups) {
    Gpu gpu;
    const KernelTable table = TableOf(AttentionKernel::kRows);
    const AttentionOps ops = MakeAttention(gpu.operands, size);
    gpu.Run(table, ops);
    INFO("B " << size.batch << " T " << size.length << " D " << size.depth);
    const AttentionGradOp<TensorView> whole = OnHost(gpu.operands, ops.grad);
    CheckSamples(whole, kTensorCores);
    AttentionSize one = size;
    one.batch = 1;
    AttentionOp<TensorView> alone = MakeAttention(gpu.operands, one).forward;
    const int64_t last = size.batch - 1;
    alone.q = RowOf(ops.forward.q, last), alone.k = RowOf(ops.forward.k, last);
    alone.v = RowOf(ops.forward.v, last);
    table.attention(alone, *gpu.stream);
    gpu.stream->Sync();
    CHECK(SameBits(gpu.operands.OnHost(alone.out), RowOf(whole.out, last)));
    CHECK(SameBits(gpu.operands.OnHost(alone.lse), RowOf(whole.lse, last)));
  }
}

// By how many powers of two scores of keys ahead of a row's own 128 exceed its largest there: over
// sampled rows of the first head, the most.
double MostGrowth(const AttentionGradOp<TensorView>& op) {
  double most = -INFINITY;
  for (int64_t row = 128; row < op.q.dim(1); row += 37) {
    const auto largest = [&](int64_t first, int64_t end) {
      double largest = -INFINITY;
      for (int64_t key = first; key < end; ++key) {
        double score = 0;
        for (int64_t d = 0; d < op.q.dim(3); ++d)
          score += Get(op.q, {0, row, 0, d}) * Get(op.k, {0, key, 0, d});
        largest = std::max(largest, score);
      }
      return largest;
    };
    const int64_t own = row / 128 * 128;
    most = std::max(most, largest(0, own) - largest(own, row + 1));
  }
  return most * op.scale * std::log2(std::exp(1));
}

// Rows take a tile's exponentials by the level of tiles before: further up than 2^16 they take them
// again, and beyond 2^127 they must, or they are infinite.
TEST_CASE("attention by rows whose scores grow on the way is that of our own kernel") {
  if (!HasInTurn()) return;
  for (const AttentionSize& size :
       {AttentionSize{2, 700, 4, 2, 64}, AttentionSize{2, 700, 4, 2, 128}}) {
    for (const float scale : {3.0f, 30.0f, 300.0f}) {
      Gpu gpu;
      AttentionOps own = MakeAttention(gpu.operands, size);
      own.forward.scale = own.grad.scale = scale;
      AttentionOps rows = Again(gpu.operands, own, size);
      rows.forward.scale = rows.grad.scale = scale;
      gpu.Run(TableOf(AttentionKernel::kOwn), own);
      cuda::RowsAttention(rows.forward, *gpu.stream);
      const AttentionGradOp<TensorView> expected = OnHost(gpu.operands, own.grad),
                                        got = OnHost(gpu.operands, rows.grad);
      INFO("D " << size.depth << ", scale " << scale << ", growth 2^" << MostGrowth(got));
      CHECK(MostGrowth(got) > (scale == 3 ? 16 : 127));
      CHECK(Difference(got.lse, expected.lse) <= 0x1p-16);
      CHECK(Difference(got.out, expected.out) <= kFewRoundings);
    }
  }
}

// Rows of a warp are taken again together, where one of them has outgrown its level.
TEST_CASE("attention by rows: the bits of rows do not depend on rows behind them") {
  if (!HasInTurn()) return;
  const AttentionSize size =
      GENERATE(AttentionSize{2, 400, 3, 3, 64}, AttentionSize{1, 400, 4, 2, 128});
  Gpu gpu;
  const AttentionOps ops = MakeAttention(gpu.operands, size);
  AttentionOp<TensorView> op = ops.forward;
  op.scale = 3;
  cuda::RowsAttention(op, *gpu.stream);
  gpu.stream->Sync();
  const TensorView expected = gpu.operands.OnHost(op.out);
  for (const int64_t rows : {137, 250, 256, 390}) {
    // Queries, keys and values behind `rows` are others.
    AttentionOp<TensorView> changed = MakeAttention(gpu.operands, size).forward;
    changed.scale = op.scale;
    for (const auto& [from, to] :
         {std::pair{op.q, changed.q}, {op.k, changed.k}, {op.v, changed.v}})
      for (int64_t b = 0; b < size.batch; ++b)
        MR_CUDA(cudaMemcpy2DAsync(
            to.data + b * to.stride(0) * 2, static_cast<size_t>(to.stride(1)) * 2,
            from.data + b * from.stride(0) * 2, static_cast<size_t>(from.stride(1)) * 2,
            static_cast<size_t>(from.dim(2) * from.dim(3)) * 2, static_cast<size_t>(rows),
            cudaMemcpyDeviceToDevice, AsCuda(*gpu.stream).get()));
    cuda::RowsAttention(changed, *gpu.stream);
    gpu.stream->Sync();
    const TensorView got = gpu.operands.OnHost(changed.out);
    int64_t differ_ahead = 0, differ_behind = 0;
    ForEach(got.layout, [&](const Index& i) {
      if (Get(got, i) != Get(expected, i)) ++(i[1] < rows ? differ_ahead : differ_behind);
    });
    INFO("D " << size.depth << ", " << rows << " rows are the same");
    CHECK(differ_ahead == 0);
    CHECK(differ_behind > 0);
  }
}

TEST_CASE("gradients in turn, against double on sampled rows") {
  if (!HasInTurn()) return;
  for (const AttentionSize& size : kByWarpgroups) {
    Gpu gpu;
    const AttentionOps ops = MakeAttention(gpu.operands, size);
    REQUIRE(cuda::ChooseAttention(ShapesOf(ops.grad)).kernel == AttentionKernel::kInTurn);
    gpu.Run(TableOf({}), ops);
    INFO("B " << size.batch << " T " << size.length << " D " << size.depth);
    CheckSamples(OnHost(gpu.operands, ops.grad), kTensorCores);
  }
}

TEST_CASE("gradients in turn: a row of a batch has the bits that it has alone") {
  if (!HasInTurn()) return;
  AttentionSize size =
      GENERATE(AttentionSize{30, 1001, 6, 3, 64}, AttentionSize{4, 1500, 8, 2, 128});
  Gpu gpu;
  const KernelTable table = TableOf(AttentionKernel::kInTurn);
  const AttentionOps batch = MakeAttention(gpu.operands, size);
  gpu.Run(table, batch);
  const AttentionGradOp<TensorView> whole = OnHost(gpu.operands, batch.grad);
  size.batch = 1;
  for (const int64_t b : {int64_t{0}, int64_t{1}, batch.grad.q.dim(0) - 1}) {
    AttentionGradOp<TensorView> alone = MakeAttention(gpu.operands, size).grad;
    alone.q = RowOf(batch.grad.q, b), alone.k = RowOf(batch.grad.k, b);
    alone.v = RowOf(batch.grad.v, b), alone.out = RowOf(batch.grad.out, b);
    alone.d_out = RowOf(batch.grad.d_out, b), alone.lse = RowOf(batch.grad.lse, b);
    table.attention_grad(alone, *gpu.stream);
    const AttentionGradOp<TensorView> row = OnHost(gpu.operands, alone);
    INFO("row " << b);
    CHECK(SameBits(row.d_q, RowOf(whole.d_q, b)));
    CHECK(SameBits(row.d_k, RowOf(whole.d_k, b)));
    CHECK(SameBits(row.d_v, RowOf(whole.d_v, b)));
  }
}

cuda::AttentionHeads HeadsOf(const TensorView& x) {
  return {.data = x.data,
          .batch_stride = x.stride(0),
          .row_stride = x.stride(1),
          .head_stride = x.stride(2),
          .bf16 = true,
          .wide = true};
}
cuda::AttentionLse LseOf(const TensorView& x) {
  return {.data = x.as<float>(),
          .batch_stride = x.stride(0),
          .head_stride = x.stride(1),
          .row_stride = x.stride(2)};
}
cuda::AttentionSizes SizesOf(const AttentionSize& size) {
  return {.batch = size.batch,
          .length = static_cast<int>(size.length),
          .heads = static_cast<int>(size.heads),
          .kv_heads = static_cast<int>(size.kv_heads),
          .depth = static_cast<int>(size.depth)};
}

// Blocks of many units: what one leaves in shared memory is another's.
TEST_CASE("attention by rows has the same bits on however few multiprocessors") {
  if (!HasInTurn()) return;
  const AttentionSize size =
      GENERATE(AttentionSize{2, 1030, 3, 3, 64}, AttentionSize{3, 1000, 6, 2, 128});
  Gpu gpu;
  AttentionOp<TensorView> op = MakeAttention(gpu.operands, size).forward;
  op.scale = 3;  // scores grow on the way: see above
  cuda::RowsAttention(op, *gpu.stream);
  cuda::Launch launch = cuda::LaunchOn(*gpu.stream);
  for (const int sms : {1, 2, 3, 7}) {
    const AttentionOp<TensorView> again = MakeAttention(gpu.operands, size).forward;
    launch.sms = sms;
    cuda::LaunchAttentionRows({.sizes = SizesOf(size),
                               .scale = op.scale,
                               .q = HeadsOf(op.q),
                               .k = HeadsOf(op.k),
                               .v = HeadsOf(op.v),
                               .out = HeadsOf(again.out),
                               .lse = LseOf(again.lse)},
                              launch);
    gpu.stream->Sync();
    INFO(sms << " multiprocessors, D " << size.depth);
    CHECK(SameBits(gpu.operands.OnHost(again.out), gpu.operands.OnHost(op.out)));
    CHECK(SameBits(gpu.operands.OnHost(again.lse), gpu.operands.OnHost(op.lse)));
  }
}

// Units wait for others, which may not have begun: none may wait for one behind it. Steps of a unit
// odd in number, several sets of heads.
TEST_CASE("gradients in turn end, with the same bits, on however few multiprocessors") {
  if (!HasInTurn()) return;
  const AttentionSize size =
      GENERATE(AttentionSize{2, 1030, 3, 3, 64}, AttentionSize{4, 300, 6, 3, 64},
               AttentionSize{3, 1000, 12, 3, 128});
  Gpu gpu;
  const AttentionOps ops = MakeAttention(gpu.operands, size);
  gpu.Run(TableOf(AttentionKernel::kInTurn), ops);
  const AttentionGradOp<TensorView> expected = OnHost(gpu.operands, ops.grad);
  cuda::Launch launch = cuda::LaunchOn(*gpu.stream);
  for (const int sms : {1, 2, 3, 7}) {
    const AttentionGradOp<TensorView> op = Again(gpu.operands, ops, size).grad;
    const cuda::AttentionGradArgs args = {.sizes = SizesOf(size),
                                          .scale = op.scale,
                                          .q = HeadsOf(op.q),
                                          .k = HeadsOf(op.k),
                                          .v = HeadsOf(op.v),
                                          .out = HeadsOf(ops.grad.out),
                                          .d_out = HeadsOf(op.d_out),
                                          .d_q = HeadsOf(op.d_q),
                                          .d_k = HeadsOf(op.d_k),
                                          .d_v = HeadsOf(op.d_v),
                                          .lse = LseOf(ops.grad.lse)};
    launch.sms = sms;
    cuda::LaunchInTurnAttentionGrad(args, cuda::InTurnScratchOf(ShapesOf(op)), op.scratch.data,
                                    launch);
    gpu.stream->Sync();
    const AttentionGradOp<TensorView> got = OnHost(gpu.operands, op);
    INFO(sms << " multiprocessors, D " << size.depth);
    CHECK(SameBits(got.d_q, expected.d_q));
    CHECK(SameBits(got.d_k, expected.d_k));
    CHECK(SameBits(got.d_v, expected.d_v));
  }
}

TEST_CASE("a deterministic gradient in several calls is the gradient, by batch rows and by heads") {
  for (AttentionSize size :
       {AttentionSize{3, 4096, 12, 12, 64}, AttentionSize{1, 8192, 16, 8, 64}}) {
    Gpu gpu;
    const AttentionOps cut = MakeAttention(gpu.operands, size);
    const cuda::AttentionSlices slices = cuda::SlicesOf(ShapesOf(cut.grad));
    REQUIRE((slices.batch < size.batch || slices.kv_heads < size.kv_heads));
    size.deterministic = false;
    const AttentionOps whole = Again(gpu.operands, cut, size);
    gpu.Run(TableOf(AttentionKernel::kCudnn), cut);
    gpu.Run(TableOf(AttentionKernel::kCudnn), whole);
    CheckClose(OnHost(gpu.operands, cut.grad), OnHost(gpu.operands, whole.grad), kFewRoundings);
  }
}

TEST_CASE("deterministic: 20 runs give the same bits, at other addresses, too") {
  const auto [size, kernel] =
      GENERATE(std::pair{AttentionSize{16, 1024, 12, 12, 64}, AttentionKernel::kCudnn},
               std::pair{AttentionSize{2, 2048, 16, 4, 128}, AttentionKernel::kCudnn},
               std::pair{AttentionSize{5, 777, 6, 3, 64}, AttentionKernel::kCudnn},
               std::pair{AttentionSize{16, 1024, 12, 12, 64}, AttentionKernel::kInTurn},
               std::pair{AttentionSize{16, 1024, 12, 12, 64}, AttentionKernel::kRows},
               std::pair{AttentionSize{2, 2048, 16, 4, 128}, AttentionKernel::kRows},
               std::pair{AttentionSize{2, 2048, 16, 4, 128}, AttentionKernel::kInTurn},
               std::pair{AttentionSize{5, 777, 6, 3, 64}, AttentionKernel::kInTurn},
               std::pair{AttentionSize{2, 777, 6, 3, 64, DType::kF32}, AttentionKernel::kOwn});
  if ((kernel == AttentionKernel::kInTurn || kernel == AttentionKernel::kRows) && !HasInTurn())
    return;
  Gpu gpu;
  const KernelTable table = TableOf(kernel);
  const AttentionOps first = MakeAttention(gpu.operands, size);
  gpu.Run(table, first);
  const AttentionGradOp<TensorView> expected = OnHost(gpu.operands, first.grad);
  const AttentionOps second = Again(gpu.operands, first, size);
  for (int run = 0; run < 20; ++run) {
    const AttentionOps& ops = run % 2 == 0 ? first : second;
    gpu.Run(table, ops);
    DeviceOperands copies(gpu.device, *gpu.stream);
    INFO("run " << run);
    REQUIRE(SameResults(OnHost(copies, ops.grad), expected));
  }
}

TEST_CASE("a captured attention replays the bits of the eager one") {
  const AttentionSize size =
      GENERATE(AttentionSize{2, 200, 6, 3, 64, DType::kF32}, AttentionSize{2, 200, 6, 3, 64},
               AttentionSize{2, 200, 6, 3, 72}, AttentionSize{2, 500, 6, 3, 128});
  Gpu gpu;
  const KernelTable table = TableOf({});
  const AttentionOps eager = MakeAttention(gpu.operands, size);
  gpu.Run(table, eager);
  const AttentionOps captured = Again(gpu.operands, eager, size);
  gpu.device.BeginCapture(*gpu.stream);
  table.attention(captured.forward, *gpu.stream);
  table.attention_grad(captured.grad, *gpu.stream);
  const std::unique_ptr<Graph> graph = gpu.device.EndCapture(*gpu.stream);
  for (int run = 0; run < 3; ++run) graph->Launch(*gpu.stream);
  gpu.stream->Sync();
  CHECK(SameResults(OnHost(gpu.operands, captured.grad), OnHost(gpu.operands, eager.grad)));
}

TEST_CASE("the planned scratch is enough for cuDNN's plans, and not much more") {
  Gpu gpu;
  for (AttentionSize size :
       {AttentionSize{64, 1024, 12, 12, 64}, AttentionSize{16, 1024, 25, 25, 64},
        AttentionSize{8, 4096, 32, 8, 64}, AttentionSize{1, 8192, 32, 8, 128},
        AttentionSize{4, 256, 6, 6, 64}, AttentionSize{2, 2, 4, 2, 64},
        AttentionSize{3, 65, 6, 2, 8}, AttentionSize{3, 130, 6, 2, 200}}) {
    for (const bool deterministic : {true, false}) {
      size.deterministic = deterministic;
      DeviceOperands operands(gpu.device, *gpu.stream);
      const AttentionOps ops = MakeAttention(operands, size);
      INFO("B " << size.batch << " T " << size.length << " H " << size.heads << " D " << size.depth
                << ' ' << deterministic);
      const int64_t forward = cuda::CudnnBytes(ops.forward, gpu.device);
      const int64_t grad = cuda::CudnnBytes(ops.grad, gpu.device);
      CHECK(forward <= WorkspaceBytes(ShapesOf(ops.forward), Backend::kCuda));
      CHECK(grad <= WorkspaceBytes(ShapesOf(ops.grad), Backend::kCuda));
      const AttentionGradOp<Shape> shapes = ShapesOf(ops.grad);
      const bool in_turn = cuda::ChooseAttention(shapes).kernel == AttentionKernel::kInTurn;
      const int64_t either = in_turn ? std::max(grad, cuda::InTurnScratchOf(shapes).bytes) : grad;
      CHECK(either + (1 << 20) >= WorkspaceBytes(shapes, Backend::kCuda));
    }
  }
}

TEST_CASE("forward alone writes no lse where none is asked for") {
  const auto [dtype, kernel] = GENERATE(std::pair{DType::kF32, AttentionKernel::kOwn},
                                        std::pair{DType::kBF16, AttentionKernel::kCudnn},
                                        std::pair{DType::kBF16, AttentionKernel::kRows});
  if (kernel == AttentionKernel::kRows && !HasInTurn()) return;
  const AttentionSize size{2, 100, 4, 2, 64, dtype};
  Gpu gpu;
  const KernelTable table = TableOf(kernel);
  const AttentionOps with = MakeAttention(gpu.operands, size);
  AttentionOps without = Again(gpu.operands, with, size);
  const TensorView lse = without.forward.lse;
  without.forward.lse = {};
  table.attention(with.forward, *gpu.stream);
  table.attention(without.forward, *gpu.stream);
  gpu.stream->Sync();
  CHECK(SameBits(gpu.operands.OnHost(with.forward.out), gpu.operands.OnHost(without.forward.out)));
  const TensorView untouched = gpu.operands.OnHost(lse);
  for (int64_t i = 0; i < untouched.bytes(); ++i) REQUIRE(untouched.data[i] == std::byte{0xff});
}

template <class F>
std::string Refusal(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInternal);
    return error.what();
  }
  return "";
}

TEST_CASE("operands that attention by rows cannot take are refused by name") {
  if (!HasInTurn()) return;
  using Catch::Matchers::Contains;
  Gpu gpu;
  const AttentionOp<TensorView> fine = MakeAttention(gpu.operands, {2, 100, 4, 2, 64}).forward;
  const auto message_of = [&](const auto& op) {
    return Refusal([&] { cuda::RowsAttention(op, *gpu.stream); });
  };
  AttentionOp<TensorView> op = fine;
  op.out.data += 2;
  CHECK_THAT(message_of(op), Contains("out") && Contains("16 bytes"));
  op = fine;
  op.scale = 0;
  CHECK_THAT(message_of(op), Contains("a scale of 0"));
  op = fine;
  op.window = 7;
  CHECK_THAT(message_of(op), Contains("a window"));
}

TEST_CASE("operands that the gradient in turn cannot take are refused by name") {
  if (!HasInTurn()) return;
  using Catch::Matchers::Contains;
  Gpu gpu;
  const auto message_of = [&](const auto& op) {
    return Refusal([&] { cuda::InTurnAttentionGrad(op, *gpu.stream); });
  };
  const AttentionGradOp<TensorView> fine = MakeAttention(gpu.operands, {2, 100, 4, 2, 64}).grad;
  AttentionGradOp<TensorView> op = fine;
  op.out.data += 2;
  CHECK_THAT(message_of(op), Contains("out") && Contains("16 bytes"));
  op = fine;
  op.scratch.layout.dims[0] = 100;
  CHECK_THAT(message_of(op), Contains("100") && Contains("scratch"));
  op = fine;
  op.window = 7;
  CHECK_THAT(message_of(op), Contains("a window"));
  op = fine;
  op.q.layout.strides[2] += 8;
  CHECK_THAT(message_of(op), Contains("heads that follow each other"));
  op = MakeAttention(gpu.operands, {2, 100, 4, 2, 72}).grad;
  CHECK_THAT(message_of(op), Contains("heads of 72"));
  op = MakeAttention(gpu.operands, {2, 100, 4, 2, 64, DType::kF32}).grad;
  CHECK_THAT(message_of(op), Contains("f32") && Contains("bf16"));
}

TEST_CASE("operands that cuDNN cannot take are refused by name") {
  using Catch::Matchers::Contains;
  Gpu gpu;
  const AttentionOps ops = MakeAttention(gpu.operands, {2, 100, 4, 2, 64});
  const auto message_of = [&](const auto& op) {
    return Refusal([&] { cuda::CudnnAttentionGrad(op, *gpu.stream); });
  };
  AttentionGradOp<TensorView> op = ops.grad;
  op.out.data += 2;
  CHECK_THAT(message_of(op), Contains("16 bytes"));
  op = ops.grad;
  op.scratch.layout.dims[0] = 100;
  CHECK_THAT(message_of(op), Contains("100") && Contains("scratch"));
  op = MakeAttention(gpu.operands, {2, 100, 4, 2, 64, DType::kF32}).grad;
  CHECK_THAT(message_of(op), Contains("f32") && Contains("bf16"));
}

}  // namespace
}  // namespace millrace::test
