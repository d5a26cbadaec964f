#include "tests/kernels/cuda/matmul_operands.h"

#include "kernels/cuda/tuning/tuning_fill.h"
#include "kernels/ops/matmul_key.h"

namespace millrace::test {

TensorView DeviceOperands::New(const Layout& layout) {
  const int64_t bytes = layout.span_bytes();
  buffers_.push_back(device_.Allocate(bytes, "test operand"));
  device_.EnqueueFill(buffers_.back()->data(), std::byte{0xff}, bytes, stream_);
  return {buffers_.back()->data(), layout};
}

TensorView DeviceOperands::Random(const Layout& layout) {
  const TensorView view = New(layout);
  cuda::LaunchFillUniform(view.data, layout.dtype, layout.span_bytes() / Bytes(layout.dtype),
                          ++seed_ << 40, AsCuda(stream_).get());
  return view;
}

TensorView DeviceOperands::OnHost(const TensorView& view) {
  const int64_t bytes = view.layout.span_bytes();
  hosts_.push_back(std::make_unique<std::byte[]>(static_cast<size_t>(bytes)));
  device_.CopyToHost(hosts_.back().get(), view.data, bytes, stream_);
  return {hosts_.back().get(), view.layout};
}

TensorView DeviceOperands::Copy(const TensorView& view) {
  const TensorView copy = New(view.layout), host = OnHost(view);
  device_.CopyFromHost(copy.data, host.data, view.layout.span_bytes(), stream_);
  return copy;
}

MatmulOp<Shape> ShapesOf(const ProductShape& p) {
  const auto matrix = [&](int64_t rows, int64_t cols, bool transposed) {
    return transposed ? TransposedView(Shape{DenseLayout(p.operands, {cols, rows}), true})
                      : Shape{DenseLayout(p.operands, {rows, cols}), true};
  };
  MatmulOp<Shape> op;
  op.a = matrix(p.m, p.k, p.a_transposed);
  op.b = matrix(p.k, p.n, p.b_transposed);
  op.out = {DenseLayout(p.result, {p.m, p.n}), true};
  return op;
}

}  // namespace millrace::test
