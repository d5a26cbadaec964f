#include "kernels/cuda/attention/attention_split.h"

#include <algorithm>

#include "kernels/cuda/attention/attention_check.h"
#include "kernels/cuda/attention/attention_chunks.h"
#include "kernels/cuda/attention/attention_cudnn.h"
#include "kernels/cuda/views.h"
#include "kernels/ops/attention_choice.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/error.h"

namespace millrace::cuda {
namespace {

template <template <class> class Op>
Op<Shape> ShapeOf(const Op<TensorView>& op) {
  return ConvertOp<Op, TensorView, Shape>(op, [](const TensorView& view) {
    return Shape{view.layout, static_cast<bool>(view)};
  });
}

AttentionHeads HeadsOf(const TensorView& view) {
  return {.data = view.data,
          .batch_stride = view.stride(0),
          .row_stride = view.stride(1),
          .head_stride = view.stride(2),
          .bf16 = view.dtype() == DType::kBF16,
          .wide = true,
          .f16 = view.dtype() == DType::kF16};
}

// The views of a split op's chunks and of its scratch.
class Chunks {
 public:
  template <template <class> class Op>
  Chunks(const Op<TensorView>& op, Stream& stream)
      : d_(CheckAttention(op)),
        dtype_(op.q.dtype()),
        at_(ChunkScratchOf(ShapeOf(op))),
        scratch_(ScratchOf(op.scratch, at_.bytes, Op<TensorView>::kName)),
        launch_(LaunchOn(stream)) {
    const AttentionChoice choice = ChooseAttention(ShapeOf(op));
    MR_CHECK(choice.why.empty(), "{} given to cuDNN: {}", Op<TensorView>::kName, choice.why);
  }

  const AttentionDims& dims() const { return d_; }
  const ChunkScratch& at() const { return at_; }
  const Launch& launch() const { return launch_; }
  int64_t Index(size_t i) const { return d_.starts[i] / d_.chunk(); }  // of queries i

  // Rows of this rank's chunk i; of all ranks' keys those of chunk j.
  TensorView Queries(TensorView view, size_t i) const {
    return Cut(view, static_cast<int64_t>(i) * d_.chunk() * view.stride(1));
  }
  TensorView Keys(TensorView view, int64_t j) const {
    const bool late = j >= d_.ranks;
    const int64_t rank = late ? 2 * d_.ranks - 1 - j : j;
    return Cut(view, rank * d_.batch * view.stride(0) + (late ? d_.chunk() * view.stride(1) : 0));
  }

  TensorView Call(int64_t bytes) const {
    return {scratch_ + at_.call, DenseLayout(DType::kU8, {bytes})};
  }
  float* Floats(int64_t offset) const { return reinterpret_cast<float*>(scratch_ + offset); }
  TensorView Lse(size_t which) const {
    return {scratch_ + at_.lse[which], DenseLayout(DType::kF32, {d_.batch, d_.heads, d_.chunk()})};
  }
  TensorView Temporary(int64_t offset, int64_t heads) const {
    return {scratch_ + offset, DenseLayout(dtype_, {d_.batch, d_.chunk(), heads, d_.depth})};
  }
  ChunkSizes Sizes(int64_t heads) const {
    return {d_.batch, static_cast<int>(d_.chunk()), static_cast<int>(heads),
            static_cast<int>(d_.depth)};
  }

  // Between an op's lse [B,H,2S] and a dense one of chunk i.
  enum class Direction { kOut, kIn };
  void CopyLse(const TensorView& lse, size_t i, const TensorView& dense, Direction to) const {
    const size_t chunk = static_cast<size_t>(d_.chunk()) * 4, row = 2 * chunk;
    std::byte* const part = lse.data + i * chunk;
    const auto rows = static_cast<size_t>(d_.batch * d_.heads);
    if (to == Direction::kOut)
      MR_CUDA(cudaMemcpy2DAsync(part, row, dense.data, chunk, chunk, rows, cudaMemcpyDeviceToDevice,
                                launch_.stream));
    else
      MR_CUDA(cudaMemcpy2DAsync(dense.data, chunk, part, row, chunk, rows, cudaMemcpyDeviceToDevice,
                                launch_.stream));
  }

 private:
  TensorView Cut(TensorView view, int64_t elements) const {
    view.data += elements * Bytes(view.dtype());
    view.layout.dims[0] = d_.batch;
    view.layout.dims[1] = d_.chunk();
    return view;
  }

  AttentionDims d_;
  DType dtype_;  // of all heads
  ChunkScratch at_;
  std::byte* scratch_;
  Launch launch_;
};

}  // namespace

void SplitAttention(const AttentionOp<TensorView>& op, Stream& stream) {
  const Chunks chunks(op, stream);
  const AttentionDims& d = chunks.dims();
  if (d.empty()) return;
  AttentionOp<TensorView> call;
  call.scale = op.scale;
  call.scratch = chunks.Call(AttentionBytes(ChunkOf(ShapeOf(op))));
  for (size_t i = 0; i < 2; ++i) {
    const int64_t last = chunks.Index(i);
    const TensorView out = chunks.Queries(op.out, i);
    call.q = chunks.Queries(op.q, i);
    for (int64_t j = 0; j <= last; ++j) {
      call.k = chunks.Keys(op.k, j);
      call.v = chunks.Keys(op.v, j);
      call.out = last == 0 ? out : chunks.Temporary(chunks.at().queries, d.heads);
      call.lse = chunks.Lse(0);
      CudnnChunk(call, j == last ? ChunkMask::kCausal : ChunkMask::kNone, stream);
      if (last == 0) continue;
      const size_t turn = static_cast<size_t>(j % 2);
      LaunchChunkMerge({.sizes = chunks.Sizes(d.heads),
                        .part = HeadsOf(call.out),
                        .out = HeadsOf(out),
                        .sum = chunks.Floats(chunks.at().query_sum),
                        .lse_part = call.lse.as<float>(),
                        .lse_before = chunks.Lse(2 - turn).as<float>(),
                        .lse = chunks.Lse(1 + turn).as<float>(),
                        .turn = {.first = j == 0, .last = j == last}},
                       chunks.launch());
    }
    if (!op.lse) continue;
    const TensorView lse = chunks.Lse(last == 0 ? 0 : 1 + static_cast<size_t>(last % 2));
    chunks.CopyLse(op.lse, i, lse, Chunks::Direction::kOut);
  }
}

namespace {

// The gradient's calls, by chunk of keys.
class SplitGrad {
 public:
  SplitGrad(const AttentionGradOp<TensorView>& op, Stream& stream)
      : op_(op), chunks_(op, stream), stream_(stream) {
    call_.scale = op.scale;
    call_.deterministic = op.deterministic;
    call_.scratch = chunks_.Call(AttentionBytes(ChunkOf(ShapeOf(op))));
  }

  void Run() {
    const AttentionDims& d = chunks_.dims();
    if (d.empty()) return;
    for (size_t i = 0; i < 2; ++i)
      chunks_.CopyLse(op_.lse, i, chunks_.Lse(i), Chunks::Direction::kIn);
    for (int64_t j = 0; j < 2 * d.ranks; ++j) Keys(j);
  }

 private:
  void Keys(int64_t j) {
    const AttentionDims& d = chunks_.dims();
    const TensorView d_k = chunks_.Keys(op_.d_k, j), d_v = chunks_.Keys(op_.d_v, j);
    int seeing = 0;
    for (size_t i = 0; i < 2; ++i) seeing += chunks_.Index(i) >= j;
    if (seeing == 0) {  // no query of this rank: zero
      SumKeys({}, d_k, 0, {.first = true, .last = true});
      return SumKeys({}, d_v, 1, {.first = true, .last = true});
    }
    call_.k = chunks_.Keys(op_.k, j);
    call_.v = chunks_.Keys(op_.v, j);
    call_.d_k = seeing == 1 ? d_k : chunks_.Temporary(chunks_.at().keys[0], d.kv_heads);
    call_.d_v = seeing == 1 ? d_v : chunks_.Temporary(chunks_.at().keys[1], d.kv_heads);
    int seen = 0;
    for (size_t i = 0; i < 2; ++i) {
      if (chunks_.Index(i) < j) continue;
      Queries(i, j);
      ++seen;
      if (seeing == 1) continue;
      const ChunkTurn turn{.first = seen == 1, .last = seen == seeing};
      SumKeys(call_.d_k, d_k, 0, turn);
      SumKeys(call_.d_v, d_v, 1, turn);
    }
  }

  void Queries(size_t i, int64_t j) {
    const AttentionDims& d = chunks_.dims();
    const int64_t last = chunks_.Index(i);
    const TensorView d_q = chunks_.Queries(op_.d_q, i);
    call_.q = chunks_.Queries(op_.q, i);
    call_.out = chunks_.Queries(op_.out, i);
    call_.d_out = chunks_.Queries(op_.d_out, i);
    call_.lse = chunks_.Lse(i);
    call_.d_q = last == 0 ? d_q : chunks_.Temporary(chunks_.at().queries, d.heads);
    CudnnChunk(call_, j == last ? ChunkMask::kCausal : ChunkMask::kNone, stream_);
    if (last == 0) return;
    const int64_t numel = d.batch * d.chunk() * d.heads * d.depth;
    LaunchChunkSum({.sizes = chunks_.Sizes(d.heads),
                    .part = HeadsOf(call_.d_q),
                    .out = HeadsOf(d_q),
                    .sum = chunks_.Floats(chunks_.at().query_sum) + static_cast<int64_t>(i) * numel,
                    .turn = {.first = j == 0, .last = j == last}},
                   chunks_.launch());
  }

  void SumKeys(const TensorView& part, const TensorView& out, size_t which, ChunkTurn turn) const {
    LaunchChunkSum({.sizes = chunks_.Sizes(chunks_.dims().kv_heads),
                    .part = part ? HeadsOf(part) : AttentionHeads{},
                    .out = HeadsOf(out),
                    .sum = chunks_.Floats(chunks_.at().key_sum[which]),
                    .turn = turn},
                   chunks_.launch());
  }

  const AttentionGradOp<TensorView>& op_;
  Chunks chunks_;
  Stream& stream_;
  AttentionGradOp<TensorView> call_;
};

}  // namespace

void SplitAttentionGrad(const AttentionGradOp<TensorView>& op, Stream& stream) {
  SplitGrad(op, stream).Run();
}

}  // namespace millrace::cuda
