#include "kernels/cuda/attention/attention_own.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cuda/attention/attention_check.h"
#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/attention/attention_rows.h"
#include "kernels/cuda/attention/attention_turns.h"
#include "kernels/cuda/views.h"
#include "kernels/ops/attention_choice.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/error.h"

namespace millrace::cuda {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

AttentionSizes SizesOf(const AttentionDims& d, int64_t window, const TensorView& documents) {
  MR_CHECK_LE(d.depth, kMaxAttentionDepth, "attention: head dimension");
  const int64_t length = d.length(), tiles = CeilDiv(length, kAttentionTile);
  MR_CHECK_LE(std::max(length, d.heads), kMaxInt, "attention: sequence length or heads");
  MR_CHECK(!documents || !d.split(), "attention: documents in rows that are split over ranks");
  MR_CHECK_LE(tiles * d.heads * d.batch, kMaxInt, "attention: blocks of {} rows", kAttentionTile);
  return {.batch = d.batch,
          .length = static_cast<int>(length),
          .heads = static_cast<int>(d.heads),
          .kv_heads = static_cast<int>(d.kv_heads),
          .depth = static_cast<int>(d.depth),
          .window = static_cast<int>(window >= length ? 0 : window),
          .ranks = static_cast<int>(d.ranks),
          .chunks = static_cast<int>(d.chunks()),
          .chunk = static_cast<int>(d.chunk()),
          .start = {static_cast<int>(d.starts[0]), static_cast<int>(d.starts[1])},
          .documents = IntsOf(documents, d.batch * d.rows, "documents")};
}

AttentionHeads HeadsOf(const TensorView& view) {
  const Layout& layout = view.layout;
  bool wide =
      layout.dims[3] % 4 == 0 &&
      reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(4 * Bytes(layout.dtype)) == 0;
  for (int i = 0; i < 3; ++i) wide &= layout.dims[i] <= 1 || layout.strides[i] % 4 == 0;
  return {.data = view.data,
          .batch_stride = layout.strides[0],
          .row_stride = layout.strides[1],
          .head_stride = layout.strides[2],
          .bf16 = layout.dtype == DType::kBF16,
          .wide = wide,
          .f16 = layout.dtype == DType::kF16};
}

AttentionLse LseOf(const TensorView& lse) {
  if (!lse) return {};
  return {.data = lse.as<float>(),
          .batch_stride = lse.stride(0),
          .head_stride = lse.stride(1),
          .row_stride = lse.stride(2)};
}

AttentionArgs ArgsOf(const AttentionOp<TensorView>& op, const AttentionDims& d) {
  return {.sizes = SizesOf(d, op.window, op.documents),
          .scale = op.scale,
          .q = HeadsOf(op.q),
          .k = HeadsOf(op.k),
          .v = HeadsOf(op.v),
          .out = HeadsOf(op.out),
          .lse = LseOf(op.lse)};
}

void CheckScratch(const AttentionGradOp<TensorView>& op, int64_t bytes) {
  MR_CHECK_GE(op.scratch ? op.scratch.bytes() : 0, bytes, "attention_grad: bytes of scratch");
}

AttentionGradArgs ArgsOf(const AttentionGradOp<TensorView>& op, const AttentionDims& d) {
  return {.sizes = SizesOf(d, op.window, op.documents),
          .scale = op.scale,
          .q = HeadsOf(op.q),
          .k = HeadsOf(op.k),
          .v = HeadsOf(op.v),
          .out = HeadsOf(op.out),
          .d_out = HeadsOf(op.d_out),
          .d_q = HeadsOf(op.d_q),
          .d_k = HeadsOf(op.d_k),
          .d_v = HeadsOf(op.d_v),
          .lse = LseOf(op.lse),
          .delta = op.scratch.as<float>()};
}

Elements MixOfHeads(const AttentionOp<TensorView>& op) {
  return MixOf({op.q.dtype(), op.k.dtype(), op.v.dtype(), op.out.dtype()});
}
Elements MixOfHeads(const AttentionGradOp<TensorView>& op) {
  return MixOf({op.q.dtype(), op.k.dtype(), op.v.dtype(), op.out.dtype(), op.d_out.dtype(),
                op.d_q.dtype(), op.d_k.dtype(), op.d_v.dtype()});
}

template <template <class> class Op>
Op<Shape> ShapesOf(const Op<TensorView>& op) {
  return ConvertOp<Op, TensorView, Shape>(op, [](const TensorView& view) {
    return Shape{view.layout, static_cast<bool>(view)};
  });
}

// Of whatever kernels by warpgroups read and write, lse aside; that they serve such operands here.
template <template <class> class Op, class WhyNot>
void CheckWarpgroups(const Op<TensorView>& op, WhyNot why_not, Stream& stream) {
  constexpr uintptr_t kBytes = 16;
  constexpr std::string_view kName = Op<TensorView>::kName;
  MR_REQUIRE(ErrorCode::kDevice, HasWarpgroups(stream),
             "{} has no {} by warpgroups, which GPUs of compute capability 9.0 have, by a program "
             "built for sm_90a",
             AsCuda(stream).device().properties().name, kName);
  const std::string why = why_not(ShapesOf(op));
  MR_CHECK(why.empty(), "{} by warpgroups: {}", kName, why);
  Op<TensorView>::Visit(op, [&](const TensorView& view, Access, std::string_view name) {
    if (&view == &op.lse || !view) return;
    MR_CHECK(reinterpret_cast<uintptr_t>(view.data) % kBytes == 0,
             "{} by warpgroups: {} is {} at {}; a multiple of {} bytes is expected", kName, name,
             ToString(view.layout), static_cast<const void*>(view.data), kBytes);
  });
}

// What attention_launch.h asks for of packed kernels.
template <class Op>
void CheckPacked(const Op& op, const AttentionDims& d) {
  constexpr int64_t kBytes = 16, kElements = kBytes / 2;
  MR_CHECK(
      !d.split() && op.scale > 0 && d.depth % kElements == 0 && d.depth <= kMaxPackedDepth,
      "{} of packed rows: {} ranks, scale {}, head dimension {}; one rank, a scale above 0 and "
      "a multiple of {} up to {} are expected",
      Op::kName, d.ranks, op.scale, d.depth, kElements, kMaxPackedDepth);
  Op::Visit(op, [&](const TensorView& view, Access access, std::string_view name) {
    if (!view || view.layout.rank != 4 || access == Access::kScratch) return;
    bool aligned = reinterpret_cast<uintptr_t>(view.data) % kBytes == 0;
    for (int i = 0; i < 3; ++i) aligned &= view.dim(i) <= 1 || view.stride(i) % kElements == 0;
    MR_CHECK(view.dtype() == DType::kBF16 && aligned,
             "{} of packed rows: {} is {} at {}; bf16 in multiples of {} bytes is expected",
             Op::kName, name, ToString(view.layout), static_cast<const void*>(view.data), kBytes);
  });
}

}  // namespace

void OwnAttention(const AttentionOp<TensorView>& op, Stream& stream) {
  const AttentionDims d = CheckAttention(op);
  if (!d.empty()) LaunchAttention(ArgsOf(op, d), MixOfHeads(op), LaunchOn(stream));
}
void OwnAttentionGrad(const AttentionGradOp<TensorView>& op, Stream& stream) {
  const AttentionDims d = CheckAttention(op);
  if (d.empty()) return;
  CheckScratch(op, d.batch * d.heads * d.rows * 4);
  LaunchAttentionGrad(ArgsOf(op, d), MixOfHeads(op), LaunchOn(stream));
}

void PackedAttention(const AttentionOp<TensorView>& op, Stream& stream) {
  const AttentionDims d = CheckAttention(op);
  if (d.empty()) return;
  CheckPacked(op, d);
  LaunchPackedAttention(ArgsOf(op, d), LaunchOn(stream));
}
void PackedAttentionGrad(const AttentionGradOp<TensorView>& op, Stream& stream) {
  const AttentionDims d = CheckAttention(op);
  if (d.empty()) return;
  CheckPacked(op, d);
  CheckScratch(op, d.batch * d.heads * d.rows * 4);
  LaunchPackedAttentionGrad(ArgsOf(op, d), LaunchOn(stream));
}

bool HasWarpgroups(Stream& stream) {
  const cudaDeviceProp& device = AsCuda(stream).device().properties();
  return HasInTurn(device.major, device.minor);
}
void RowsAttention(const AttentionOp<TensorView>& op, Stream& stream) {
  const AttentionDims d = CheckAttention(op);
  if (d.empty()) return;
  CheckWarpgroups(op, WhyNotRows, stream);
  LaunchAttentionRows(ArgsOf(op, d), LaunchOn(stream));
}
void InTurnAttentionGrad(const AttentionGradOp<TensorView>& op, Stream& stream) {
  const AttentionDims d = CheckAttention(op);
  if (d.empty()) return;
  CheckWarpgroups(op, WhyNotInTurn, stream);
  const InTurnScratch scratch = InTurnScratchOf(ShapesOf(op));
  CheckScratch(op, scratch.bytes);
  LaunchInTurnAttentionGrad(ArgsOf(op, d), scratch, op.scratch.data, LaunchOn(stream));
}

}  // namespace millrace::cuda
