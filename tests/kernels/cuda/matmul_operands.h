// Operands of products at the sizes of real models: random, made on the device, copied to the host
// where a test looks at them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/ops/cost.h"
#include "kernels/ops/model_ops.h"
#include "runtime/base/cuda/cuda_device.h"

namespace millrace::test {

class DeviceOperands {
 public:
  DeviceOperands(CudaDevice& device, Stream& stream) : device_(device), stream_(stream) {}

  // Uniform in (-1, 1), other values in every call.
  TensorView Random(const Layout& layout);
  // Every byte is 0xff, a NaN in both float types.
  TensorView New(const Layout& layout);
  // A view of host memory with the device's values.
  TensorView OnHost(const TensorView& view);
  // A copy on the device.
  TensorView Copy(const TensorView& view);

  // The op with random operands for whatever is present in `shape`, results filled with NaN unless
  // they are accumulated into, and scratch.
  template <template <class> class Op>
  Op<TensorView> Make(const Op<Shape>& shape) {
    Op<TensorView> op;
    static_cast<typename Op<TensorView>::Attrs&>(op) = shape;
    std::vector<TensorView> views;
    Op<Shape>::Visit(shape, [&](const Shape& operand, Access access, std::string_view) {
      views.push_back(!operand        ? TensorView{}
                      : Reads(access) ? Random(operand.layout)
                                      : New(operand.layout));
    });
    size_t next = 0;
    Op<TensorView>::Visit(
        op, [&](TensorView& view, Access, std::string_view) { view = views[next++]; });
    op.scratch = New(DenseLayout(DType::kU8, {WorkspaceBytes(shape, Backend::kCuda)}));
    return op;
  }

 private:
  CudaDevice& device_;
  Stream& stream_;
  uint64_t seed_ = 0;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  std::vector<std::unique_ptr<std::byte[]>> hosts_;
};

// a [m,k] and b [k,n] of one dtype into out [m,n]; a transposed operand is the
// transpose of a dense one.
struct ProductShape {
  DType operands = DType::kBF16, result = DType::kBF16;
  int64_t m = 0, n = 0, k = 0;
  bool a_transposed = false, b_transposed = false;
};
MatmulOp<Shape> ShapesOf(const ProductShape& product);

}  // namespace millrace::test
