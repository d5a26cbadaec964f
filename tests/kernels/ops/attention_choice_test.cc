#include "kernels/ops/attention_choice.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "kernels/ops/cost.h"

namespace millrace {
namespace {

using Catch::Matchers::Contains;
using cuda::AttentionKernel;

Shape Of(DType dtype, std::initializer_list<int64_t> dims) {
  return {DenseLayout(dtype, dims), true};
}

struct Size {
  int64_t batch, length, heads, kv_heads, depth;
  DType dtype = DType::kBF16;
};

// q, k, v and their gradients as slices of one fused row.
AttentionGradOp<Shape> Grad(const Size& s, bool deterministic = true) {
  const int64_t row = (s.heads + 2 * s.kv_heads) * s.depth;
  const auto slice = [&](int64_t heads) {
    Shape shape = Of(s.dtype, {s.batch, s.length, heads, s.depth});
    shape.layout.strides = {s.length * row, row, s.depth, 1};
    return shape;
  };
  AttentionGradOp<Shape> op;
  op.deterministic = deterministic;
  op.q = op.d_q = slice(s.heads);
  op.k = op.v = op.d_k = op.d_v = slice(s.kv_heads);
  op.out = op.d_out = Of(s.dtype, {s.batch, s.length, s.heads, s.depth});
  op.lse = Of(DType::kF32, {s.batch, s.heads, s.length});
  return op;
}

AttentionOp<Shape> Forward(const Size& s) {
  const AttentionGradOp<Shape> grad = Grad(s);
  AttentionOp<Shape> op;
  op.q = grad.q, op.k = grad.k, op.v = grad.v, op.out = grad.out, op.lse = grad.lse;
  return op;
}

std::string Refusal(const AttentionGradOp<Shape>& op) {
  const cuda::AttentionChoice choice = cuda::ChooseAttention(op);
  const bool served =
      choice.kernel == AttentionKernel::kCudnn || choice.kernel == AttentionKernel::kInTurn;
  CHECK(served == choice.why.empty());
  return choice.why;
}

TEST_CASE(
    "cuDNN serves attention in 16 bits of any length, grouped queries, head dimensions in eights") {
  for (const Size& size :
       {Size{64, 1024, 12, 12, 64}, Size{1, 8192, 32, 8, 128}, Size{3, 65, 6, 2, 8},
        Size{2, 2, 4, 1, 256}, Size{1, 33, 1, 1, 64}, Size{3, 65, 6, 2, 8, DType::kF16}}) {
    const bool by_rows = size.dtype == DType::kBF16 && (size.depth == 64 || size.depth == 128);
    const cuda::AttentionChoice choice = cuda::ChooseAttention(Forward(size));
    CHECK(choice.kernel == (by_rows ? AttentionKernel::kRows : AttentionKernel::kCudnn));
    CHECK(choice.why.empty());
    CHECK(Refusal(Grad(size)).empty());
  }
}

TEST_CASE("which ops are by rows, and why others may not be") {
  const AttentionOp<Shape> fine = Forward({2, 300, 6, 2, 64});
  for (const Size& size : {Size{1, 1, 1, 1, 64}, Size{64, 1024, 12, 12, 64},
                           Size{1, 8192, 32, 8, 128}, Size{2, 300, 6, 2, 64}})
    CHECK(cuda::WhyNotRows(Forward(size)).empty());
  CHECK(cuda::ChooseAttention(Forward({1, 1, 1, 1, 64})).kernel == AttentionKernel::kOwn);
  CHECK_THAT(cuda::WhyNotRows(Forward({2, 300, 6, 2, 96})), Contains("heads of 96"));
  CHECK_THAT(cuda::WhyNotRows(Forward({2, 300, 6, 2, 64, DType::kF16})), Contains("f16 heads"));
  const auto refused = [&](const AttentionOp<Shape>& op, const char* why, AttentionKernel kernel) {
    CHECK_THAT(cuda::WhyNotRows(op), Contains(why));
    CHECK(cuda::ChooseAttention(op).kernel == kernel);
  };
  AttentionOp<Shape> op = fine;
  op.in_order = true;
  refused(op, "in order", AttentionKernel::kPacked);
  op = fine;
  op.scale = -1;
  refused(op, "a scale of -1", AttentionKernel::kCudnn);
  op = fine;
  op.window = 7;
  refused(op, "a window", AttentionKernel::kOwn);
  op = fine;
  op.documents = Of(DType::kI32, {2, 300});
  refused(op, "documents", AttentionKernel::kPacked);
  op = fine;
  op.out.layout.strides[2] = 128;  // tiles of it are stored
  refused(op, "heads that follow each other", AttentionKernel::kCudnn);
  op = fine;
  op.k.layout.strides[0] += 8;
  refused(op, "multiple of a row's", AttentionKernel::kCudnn);
  // Scratch is enough for cuDNN, which has it on other GPUs.
  CHECK(cuda::AttentionBytes(fine) == cuda::AttentionBytes(Forward({2, 300, 6, 2, 96})));
}

TEST_CASE("which gradients are in turn, and why others may not be") {
  const auto kernel_of = [](const Size& size, bool deterministic) {
    return cuda::ChooseAttention(Grad(size, deterministic)).kernel;
  };
  for (const int64_t depth : {64, 128})
    for (const bool deterministic : {true, false})
      CHECK(kernel_of({2, 300, 6, 2, depth}, deterministic) == AttentionKernel::kInTurn);
  CHECK(kernel_of({2, 300, 6, 2, 96}, true) == AttentionKernel::kCudnn);
  CHECK(kernel_of({2, 1, 6, 2, 64}, true) == AttentionKernel::kOwn);
  const AttentionGradOp<Shape> fine = Grad({2, 300, 6, 2, 64});
  for (const Size& size : {Size{1, 1, 1, 1, 64}, Size{64, 1024, 12, 12, 64},
                           Size{1, 8192, 32, 8, 128}, Size{2, 300, 6, 2, 64}})
    CHECK(cuda::WhyNotInTurn(Grad(size)).empty());
  CHECK_THAT(cuda::WhyNotInTurn(Grad({2, 300, 6, 2, 96})), Contains("heads of 96"));
  CHECK_THAT(cuda::WhyNotInTurn(Grad({2, 300, 6, 2, 64, DType::kF16})), Contains("f16 heads"));
  CHECK_THAT(cuda::WhyNotInTurn(Grad({1 << 12, 1 << 20, 64, 64, 64})), Contains("rows of"));
  AttentionGradOp<Shape> op = fine;
  op.window = 7;
  CHECK_THAT(cuda::WhyNotInTurn(op), Contains("a window"));
  op = fine;
  op.rows.ranks = 2;
  CHECK_THAT(cuda::WhyNotInTurn(op), Contains("rows of several ranks"));
  op = fine;
  op.documents = Of(DType::kI32, {2, 300});
  CHECK_THAT(cuda::WhyNotInTurn(op), Contains("documents"));
  op = fine;
  op.d_out.layout.strides[2] = 128;
  CHECK_THAT(cuda::WhyNotInTurn(op), Contains("heads that follow each other"));
  CHECK(cuda::ChooseAttention(op).kernel == AttentionKernel::kCudnn);
  op = fine;
  op.v.layout.strides[0] += 8;
  CHECK_THAT(cuda::WhyNotInTurn(op), Contains("multiple of a row's"));
  op.v.layout.strides = {64 * 10, 64 * 20, 64, 1};  // time first
  CHECK_THAT(cuda::WhyNotInTurn(op), Contains("multiple of a row's"));

  // 5 tiles of 64 queries for each of 12 heads.
  const cuda::InTurnScratch scratch = cuda::InTurnScratchOf(fine);
  CHECK(scratch.rows == 60 * 64 * 64 * 4);
  CHECK(scratch.turns == scratch.rows + 60 * 64 * 8);
  CHECK(scratch.ticket == scratch.turns + 256);
  CHECK(scratch.bytes == scratch.ticket + 256);
  // Scratch is enough for it and for cuDNN, which needs more for long sequences.
  CHECK(cuda::AttentionBytes(Grad({2, 30, 6, 6, 64})) ==
        cuda::InTurnScratchOf(Grad({2, 30, 6, 6, 64})).bytes);
  CHECK(cuda::AttentionBytes(fine) > scratch.bytes);
}

TEST_CASE("packed documents go to the kernels that pass over other documents, where these serve") {
  const auto kernel_of = [](const Size& size, float scale = 0.125f, int64_t window = 0) {
    AttentionGradOp<Shape> op = Grad(size);
    op.documents = Of(DType::kI32, {size.batch, size.length});
    op.scale = scale;
    op.window = window;
    CHECK_THAT(Refusal(op), Contains("documents") || Contains("f32") || Contains("bytes"));
    // Their scratch is as our own kernels'.
    CHECK(cuda::AttentionBytes(op) == size.batch * size.heads * size.length * 4);
    return cuda::ChooseAttention(op).kernel;
  };
  for (const int64_t depth : {8, 64, 80, 96, 128})
    CHECK(kernel_of({3, 1000, 6, 3, depth}) == AttentionKernel::kPacked);
  CHECK(kernel_of({1, 1, 4, 4, 64}) == AttentionKernel::kPacked);
  CHECK(kernel_of({1, 100, 4, 4, 64}, 0.125f, 33) == AttentionKernel::kPacked);
  CHECK(kernel_of({1, 100, 4, 4, 136}) == AttentionKernel::kOwn);
  CHECK(kernel_of({1, 100, 4, 4, 68}) == AttentionKernel::kOwn);
  CHECK(kernel_of({1, 100, 4, 4, 64, DType::kF32}) == AttentionKernel::kOwn);
  CHECK(kernel_of({1, 100, 4, 4, 64, DType::kF16}) == AttentionKernel::kOwn);
  CHECK(kernel_of({1, 100, 4, 4, 64}, 0.0f) == AttentionKernel::kOwn);
}

TEST_CASE("what cuDNN cannot serve goes to our own kernels, with the reason") {
  CHECK_THAT(Refusal(Grad({2, 64, 4, 4, 64, DType::kF32})), Contains("q is f32"));
  CHECK_THAT(Refusal(Grad({2, 64, 4, 4, 20})),
             Contains("stride of 40 bytes") || Contains("head dimension 20"));
  CHECK_THAT(Refusal(Grad({2, 64, 4, 4, 264})), Contains("264") && Contains("256"));
  CHECK_THAT(Refusal(Grad({2, 1, 4, 4, 64})), Contains("sequences of 1"));
  CHECK_THAT(Refusal(Grad({65536, 2, 1, 1, 8})), Contains("65536") && Contains("65535"));
  AttentionGradOp<Shape> op = Grad({2, 64, 4, 4, 64});
  op.d_out.layout.dtype = DType::kF32;
  CHECK_THAT(Refusal(op), Contains("d_out is f32"));
  op.d_out.layout.dtype = DType::kF16;
  CHECK_THAT(Refusal(op), Contains("d_out is f16, q bf16"));
  op = Grad({2, 64, 4, 4, 64});
  op.k.layout.strides[1] += 4;
  CHECK_THAT(Refusal(op), Contains("k has a stride of 1544 bytes"));
  op = Grad({2, 64, 4, 4, 64});
  op.lse.layout.strides[0] += 1;
  CHECK_THAT(Refusal(op), Contains("lse"));
  // Strides of dimensions of one are never used.
  op = Grad({1, 64, 1, 1, 64});
  op.q.layout.strides[0] = op.q.layout.strides[2] = 3;
  CHECK(Refusal(op).empty());
}

TEST_CASE("deterministic gradients are cut so that score gradients stay within their limit") {
  const auto slices = [](const Size& size, bool deterministic) {
    const cuda::AttentionSlices s = cuda::SlicesOf(Grad(size, deterministic));
    return std::pair{s.batch, s.kv_heads};
  };
  using Pair = std::pair<int64_t, int64_t>;
  CHECK(slices({64, 1024, 12, 12, 64}, false) == Pair{64, 12});
  // 24 MiB per batch row: 42 rows fit into 1 GiB, and two equal calls do it.
  CHECK(slices({64, 1024, 12, 12, 64}, true) == Pair{32, 12});
  CHECK(slices({42, 1024, 12, 12, 64}, true) == Pair{42, 12});
  CHECK(slices({43, 1024, 12, 12, 64}, true) == Pair{22, 12});
  // 512 MiB per key/value head with its four query heads.
  CHECK(slices({1, 8192, 32, 8, 128}, true) == Pair{1, 2});
  // 8 GiB per head: one at a time, and more than the limit.
  CHECK(slices({3, 65536, 2, 2, 64}, true) == Pair{1, 1});
  // Operands of 2^31 elements and more: 16384 * 12288 elements per batch row, ten rows.
  CHECK(slices({64, 16384, 32, 32, 128}, false) == Pair{10, 32});
  const cuda::AttentionSlices forward = cuda::SlicesOf(Forward({64, 16384, 32, 32, 128}));
  CHECK(Pair{forward.batch, forward.kv_heads} == Pair{10, 32});
}

// Figures that cuDNN 9.19 gave for compute capability 9.0; 4096 bytes of room.
TEST_CASE("scratch covers what cuDNN asks for, closely") {
  struct Case {
    Size size;
    bool deterministic;
    int64_t needed;
  };
  for (const auto& [size, deterministic, needed] :
       {Case{{64, 1024, 12, 12, 64}, false, 204472576},
        Case{{16, 1024, 25, 25, 64}, true, 840499456}, Case{{8, 4096, 32, 8, 64}, false, 541065472},
        Case{{1, 8192, 32, 8, 128}, false, 269484288}, Case{{4, 256, 6, 6, 64}, true, 3170560},
        Case{{2, 2, 4, 2, 64}, true, 135488}, Case{{3, 65, 6, 2, 64}, false, 603976},
        Case{{3, 65, 6, 2, 64}, true, 894280}, Case{{2, 1000, 4, 2, 96}, true, 19881472},
        Case{{1, 129, 4, 2, 248}, false, 1026192}}) {
    const int64_t planned = cuda::AttentionBytes(Grad(size, deterministic));
    INFO("T " << size.length << " D " << size.depth << " deterministic " << deterministic);
    CHECK(planned >= needed);
    const bool in_turn =
        cuda::ChooseAttention(Grad(size, deterministic)).kernel == AttentionKernel::kInTurn;
    const int64_t ours = in_turn ? cuda::InTurnScratchOf(Grad(size, deterministic)).bytes : 0;
    CHECK(planned <= std::max(needed + 4096, ours));
  }
  CHECK(cuda::AttentionBytes(Forward({64, 1024, 12, 12, 64})) >= 256);
}

// A rank's rows of sequences over n ranks: keys of all ranks beside each other.
AttentionGradOp<Shape> SplitGrad(const Size& s, int64_t n) {
  AttentionGradOp<Shape> op = Grad(s);
  op.rows = ZigzagRows(n, s.length, Axis::kContext);
  op.k = op.v = op.d_k = op.d_v = Of(s.dtype, {n * s.batch, s.length, s.kv_heads, s.depth});
  return op;
}

TEST_CASE("sequences that are split are cuDNN's by chunks of queries and of keys") {
  const Size size{3, 512, 8, 2, 64};
  const AttentionGradOp<Shape> op = SplitGrad(size, 4);
  CHECK(Refusal(op).empty());
  const AttentionGradOp<Shape> chunk = cuda::ChunkOf(op);
  CHECK(!chunk.rows.split());
  CHECK(chunk.q.layout.dims == std::array<int64_t, 4>{3, 256, 8, 64});
  CHECK(chunk.d_k.layout.dims == std::array<int64_t, 4>{3, 256, 2, 64});
  CHECK(chunk.k.layout.strides == op.k.layout.strides);
  CHECK(chunk.lse.layout == DenseLayout(DType::kF32, {3, 8, 256}));
  // Everything that calls leave behind has a place of its own.
  const cuda::ChunkScratch at = cuda::ChunkScratchOf(op);
  const int64_t queries = 3 * 256 * 8 * 64, keys = 3 * 256 * 2 * 64, lse = 3 * 8 * 256 * 4;
  CHECK(at.lse[0] >= at.call + cuda::AttentionBytes(chunk));
  CHECK(at.lse[1] >= at.lse[0] + lse);
  CHECK(at.queries >= at.lse[1] + lse);
  CHECK(at.query_sum >= at.queries + queries * 2);
  CHECK(at.keys[0] >= at.query_sum + 2 * queries * 4);
  CHECK(at.keys[1] >= at.keys[0] + keys * 2);
  CHECK(at.key_sum[0] >= at.keys[1] + keys * 2);
  CHECK(at.key_sum[1] >= at.key_sum[0] + keys * 4);
  CHECK(at.bytes >= at.key_sum[1] + keys * 4);
  CHECK(cuda::AttentionBytes(op) == at.bytes);
  CHECK_THAT(Refusal(SplitGrad({3, 2, 8, 2, 64}, 4)), Contains("half a rank's rows"));
  CHECK(cuda::AttentionBytes(SplitGrad({3, 512, 8, 2, 64, DType::kF32}, 4)) == 3 * 8 * 512 * 4);
}

TEST_CASE("our own kernels take a float per query and head, backward only") {
  CHECK(cuda::AttentionBytes(Forward({2, 100, 6, 3, 64, DType::kF32})) == 0);
  CHECK(cuda::AttentionBytes(Grad({2, 100, 6, 3, 64, DType::kF32})) == 2 * 100 * 6 * 4);
}

}  // namespace
}  // namespace millrace
