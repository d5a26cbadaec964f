// Attention over packed documents on tensor cores: the contract of the kernel table, then documents
// of uneven lengths at sizes that its small shapes do not reach, and what is promised of bits.
#include <catch2/catch.hpp>

#include "kernels/cuda/attention/attention_own.h"
#include "runtime/base/error.h"
#include "tests/kernels/contract/contract.h"
#include "tests/kernels/cuda/attention_samples.h"

namespace millrace::test {
namespace {

using cuda::AttentionKernel;

TEST_CASE("attention over packed documents: bf16, head dimensions in eights, any length") {
  Gpu gpu;
  const KernelTable table = TableOf(AttentionKernel::kPacked);
  AttentionContract({table, gpu.device, *gpu.stream, Backend::kCuda, 16}, AttentionKernel::kPacked);
}
TEST_CASE("the gradient of attention over packed documents") {
  Gpu gpu;
  const KernelTable table = TableOf(AttentionKernel::kPacked);
  AttentionGradContract({table, gpu.device, *gpu.stream, Backend::kCuda, 16},
                        AttentionKernel::kPacked);
}

// i32 [B,T]. Row 0 is one document, row 1 is of documents of one token; in further ones documents
// end in front of a tile, at its end and behind it, and span several, each row another way.
std::vector<int32_t> UnevenDocuments(int64_t batch, int64_t length) {
  constexpr int64_t kLengths[] = {1, 1, 62, 64, 65, 3, 130, 1, 250, 17, 128};
  std::vector<int32_t> starts;
  for (int64_t b = 0; b < batch; ++b) {
    int64_t begin = 0, next = b;
    for (int64_t t = 0; t < length; ++t) {
      const int64_t of_document = kLengths[next % static_cast<int64_t>(std::size(kLengths))];
      const bool ends = b == 1 || (b > 1 && t - begin == of_document);
      if (ends) begin = t, ++next;
      starts.push_back(static_cast<int32_t>(begin));
    }
  }
  return starts;
}

void SetDocuments(Gpu& gpu, AttentionOps& ops, const std::vector<int32_t>& starts) {
  const TensorView documents =
      gpu.operands.New(DenseLayout(DType::kI32, {ops.grad.q.dim(0), ops.grad.q.dim(1)}));
  gpu.device.CopyFromHost(documents.data, starts.data(), documents.bytes(), *gpu.stream);
  gpu.stream->Sync();
  ops.forward.documents = ops.grad.documents = documents;
}

AttentionOps MakePacked(Gpu& gpu, const AttentionSize& size) {
  AttentionOps ops = MakeAttention(gpu.operands, size);
  SetDocuments(gpu, ops, UnevenDocuments(size.batch, size.length));
  return ops;
}

AttentionOps PackedAgain(Gpu& gpu, const AttentionOps& ops, const AttentionSize& size) {
  AttentionOps again = Again(gpu.operands, ops, size);
  again.forward.documents = again.grad.documents = ops.grad.documents;
  return again;
}

TEST_CASE("packed documents of uneven lengths, against double on sampled rows") {
  for (const AttentionSize& size :
       {AttentionSize{4, 1000, 6, 3, 64}, AttentionSize{4, 1000, 4, 1, 128},
        AttentionSize{3, 1000, 2, 2, 96}, AttentionSize{3, 129, 6, 2, 80},
        AttentionSize{5, 64, 3, 3, 64}, AttentionSize{4, 7, 4, 2, 128},
        AttentionSize{3, 1, 4, 2, 64}, AttentionSize{3, 2500, 2, 1, 64}}) {
    Gpu gpu;
    const AttentionOps ops = MakePacked(gpu, size);
    REQUIRE(cuda::ChooseAttention(ShapesOf(ops.forward)).kernel == AttentionKernel::kPacked);
    REQUIRE(cuda::ChooseAttention(ShapesOf(ops.grad)).kernel == AttentionKernel::kPacked);
    gpu.Run(TableOf({}), ops);
    INFO("T " << size.length << " H " << size.heads << " Hkv " << size.kv_heads << " D "
              << size.depth);
    CheckSamples(OnHost(gpu.operands, ops.grad), kTensorCores);
  }
}

TEST_CASE("packed documents: 20 runs give the same bits, at other addresses, too") {
  const AttentionSize size =
      GENERATE(AttentionSize{2, 1000, 6, 3, 64}, AttentionSize{1, 1500, 8, 2, 128});
  Gpu gpu;
  const KernelTable table = TableOf(AttentionKernel::kPacked);
  const AttentionOps first = MakePacked(gpu, size), second = PackedAgain(gpu, first, size);
  gpu.Run(table, first);
  const AttentionGradOp<TensorView> expected = OnHost(gpu.operands, first.grad);
  for (int run = 0; run < 20; ++run) {
    const AttentionOps& ops = run % 2 == 0 ? first : second;
    gpu.Run(table, ops);
    DeviceOperands copies(gpu.device, *gpu.stream);
    INFO("run " << run);
    REQUIRE(SameResults(OnHost(copies, ops.grad), expected));
  }
}

TEST_CASE("packed documents: a row of a batch has the bits that it has alone") {
  AttentionSize size = GENERATE(AttentionSize{4, 1000, 6, 3, 64}, AttentionSize{4, 300, 4, 2, 128});
  Gpu gpu;
  const KernelTable table = TableOf(AttentionKernel::kPacked);
  const AttentionOps batch = MakePacked(gpu, size);
  gpu.Run(table, batch);
  const AttentionGradOp<TensorView> whole = OnHost(gpu.operands, batch.grad);
  size.batch = 1;
  for (int64_t b = 0; b < batch.grad.q.dim(0); ++b) {
    AttentionOps alone = MakeAttention(gpu.operands, size);
    alone.forward.q = alone.grad.q = RowOf(batch.grad.q, b);
    alone.forward.k = alone.grad.k = RowOf(batch.grad.k, b);
    alone.forward.v = alone.grad.v = RowOf(batch.grad.v, b);
    alone.forward.documents = alone.grad.documents = RowOf(batch.grad.documents, b);
    alone.grad.d_out = RowOf(batch.grad.d_out, b);
    gpu.Run(table, alone);
    const AttentionGradOp<TensorView> row = OnHost(gpu.operands, alone.grad);
    INFO("row " << b);
    CHECK(SameBits(row.out, RowOf(whole.out, b)));
    CHECK(SameBits(row.lse, RowOf(whole.lse, b)));
    CHECK(SameBits(row.d_q, RowOf(whole.d_q, b)));
    CHECK(SameBits(row.d_k, RowOf(whole.d_k, b)));
    CHECK(SameBits(row.d_v, RowOf(whole.d_v, b)));
  }
}

// Positions [begin, begin + n).
TensorView PositionsOf(TensorView view, int64_t begin, int64_t n) {
  view.data += begin * view.stride(1) * Bytes(view.dtype());
  view.layout.dims[1] = n;
  return view;
}

// A tile that is not passed over multiplies what lies in it, and 0 times NaN is NaN.
TEST_CASE("packed documents between borders of tiles are all that their rows read") {
  const AttentionSize size = GENERATE(AttentionSize{1, 1024, 4, 2, 64, DType::kBF16},
                                      AttentionSize{1, 1024, 4, 2, 128, DType::kBF16});
  constexpr int64_t kDocument = 256;
  Gpu gpu;
  const KernelTable table = TableOf(AttentionKernel::kPacked);
  AttentionOps ops = MakeAttention(gpu.operands, size);
  std::vector<int32_t> starts;
  for (int64_t t = 0; t < size.length; ++t)
    starts.push_back(static_cast<int32_t>(t / kDocument * kDocument));
  SetDocuments(gpu, ops, starts);
  gpu.Run(table, ops);
  const AttentionGradOp<TensorView> clean = OnHost(gpu.operands, ops.grad);
  const int64_t kept = GENERATE(0, 1, 2, 3) * kDocument;
  for (int64_t t = 0; t < size.length; t += kDocument) {
    if (t == kept) continue;
    // q is in front of its fused row.
    for (const TensorView& view : {ops.grad.q, ops.grad.d_out})
      gpu.device.EnqueueFill(view.data + t * view.stride(1) * Bytes(view.dtype()), std::byte{0xff},
                             kDocument * view.stride(1) * Bytes(view.dtype()), *gpu.stream);
  }
  gpu.Run(table, ops);
  const AttentionGradOp<TensorView> poisoned = OnHost(gpu.operands, ops.grad);
  const auto same = [&](const TensorView& a, const TensorView& b) {
    return SameBits(PositionsOf(a, kept, kDocument), PositionsOf(b, kept, kDocument));
  };
  INFO("document at " << kept);
  CHECK(same(poisoned.out, clean.out));
  CHECK(same(poisoned.d_q, clean.d_q));
  CHECK(same(poisoned.d_k, clean.d_k));
  CHECK(same(poisoned.d_v, clean.d_v));
}

TEST_CASE("captured attention over packed documents replays the bits of the eager one") {
  const AttentionSize size{3, 200, 6, 3, 64};
  Gpu gpu;
  const KernelTable table = TableOf({});
  const AttentionOps eager = MakePacked(gpu, size), captured = PackedAgain(gpu, eager, size);
  gpu.Run(table, eager);
  gpu.device.BeginCapture(*gpu.stream);
  table.attention(captured.forward, *gpu.stream);
  table.attention_grad(captured.grad, *gpu.stream);
  const std::unique_ptr<Graph> graph = gpu.device.EndCapture(*gpu.stream);
  for (int run = 0; run < 3; ++run) graph->Launch(*gpu.stream);
  gpu.stream->Sync();
  CHECK(SameResults(OnHost(gpu.operands, captured.grad), OnHost(gpu.operands, eager.grad)));
}

TEST_CASE("operands that the packed kernels cannot take are refused by name") {
  using Catch::Matchers::Contains;
  Gpu gpu;
  const AttentionOps ops = MakePacked(gpu, {2, 100, 4, 2, 64});
  const auto message_of = [&](const AttentionGradOp<TensorView>& op) -> std::string {
    try {
      cuda::PackedAttentionGrad(op, *gpu.stream);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kInternal);
      return error.what();
    }
    return "";
  };
  AttentionGradOp<TensorView> op = ops.grad;
  op.out.data += 2;
  CHECK_THAT(message_of(op), Contains("out") && Contains("16 bytes"));
  op = ops.grad;
  op.scratch.layout.dims[0] = 100;
  CHECK_THAT(message_of(op), Contains("100") && Contains("scratch"));
  op = ops.grad;
  op.scale = 0;
  CHECK_THAT(message_of(op), Contains("scale 0"));
  op = MakePacked(gpu, {2, 100, 4, 2, 136}).grad;
  CHECK_THAT(message_of(op), Contains("head dimension 136"));
  op = MakePacked(gpu, {2, 100, 4, 2, 64, DType::kF32}).grad;
  CHECK_THAT(message_of(op), Contains("f32") && Contains("bf16"));
}

}  // namespace
}  // namespace millrace::test
