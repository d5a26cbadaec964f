#include "tests/kernels/cuda/attention_operands.h"

#include <cmath>

namespace millrace::test {
namespace {

Shape ShapeOf(const TensorView& view) { return {view.layout, static_cast<bool>(view)}; }

struct Qkv {
  TensorView q, k, v;
};

Qkv Slices(const TensorView& row, const AttentionSize& s) {
  const auto slice = [&](int64_t heads, int64_t first_head) {
    TensorView view = row;
    view.data += first_head * s.depth * Bytes(s.dtype);
    view.layout = DenseLayout(s.dtype, {s.batch, s.length, heads, s.depth});
    view.layout.strides = {row.stride(0), row.stride(1), s.depth, 1};
    return view;
  };
  return {slice(s.heads, 0), slice(s.kv_heads, s.heads), slice(s.kv_heads, s.heads + s.kv_heads)};
}

}  // namespace

AttentionOps MakeAttention(DeviceOperands& operands, const AttentionSize& s) {
  const Layout row =
      DenseLayout(s.dtype, {s.batch, s.length, (s.heads + 2 * s.kv_heads) * s.depth});
  const Layout heads = DenseLayout(s.dtype, {s.batch, s.length, s.heads, s.depth});
  const Qkv qkv = Slices(operands.Random(row), s), grads = Slices(operands.New(row), s);
  AttentionOps ops;
  ops.forward.scale = ops.grad.scale = 1 / std::sqrt(static_cast<float>(s.depth));
  ops.grad.deterministic = s.deterministic;
  ops.forward.q = ops.grad.q = qkv.q;
  ops.forward.k = ops.grad.k = qkv.k;
  ops.forward.v = ops.grad.v = qkv.v;
  ops.forward.out = ops.grad.out = operands.New(heads);
  ops.forward.lse = ops.grad.lse =
      operands.New(DenseLayout(DType::kF32, {s.batch, s.heads, s.length}));
  ops.grad.d_out = operands.Random(heads);
  ops.grad.d_q = grads.q, ops.grad.d_k = grads.k, ops.grad.d_v = grads.v;
  const auto scratch = [&](int64_t bytes) {
    return bytes == 0 ? TensorView{} : operands.New(DenseLayout(DType::kU8, {bytes}));
  };
  ops.forward.scratch = scratch(WorkspaceBytes(ShapesOf(ops.forward), Backend::kCuda));
  ops.grad.scratch = scratch(WorkspaceBytes(ShapesOf(ops.grad), Backend::kCuda));
  return ops;
}

AttentionOp<Shape> ShapesOf(const AttentionOp<TensorView>& op) {
  return ConvertOp<AttentionOp, TensorView, Shape>(op, ShapeOf);
}
AttentionGradOp<Shape> ShapesOf(const AttentionGradOp<TensorView>& op) {
  return ConvertOp<AttentionGradOp, TensorView, Shape>(op, ShapeOf);
}

}  // namespace millrace::test
