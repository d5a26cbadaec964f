#include "kernels/cuda/attention/attention.h"

#include "kernels/cuda/attention/attention_cudnn.h"
#include "kernels/cuda/attention/attention_own.h"
#include "kernels/ops/attention_choice.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

template <template <class> class Op>
cuda::AttentionKernel KernelOf(const Op<TensorView>& op) {
  const auto shape_of = [](const TensorView& view) {
    return Shape{view.layout, static_cast<bool>(view)};
  };
  return cuda::ChooseAttention(ConvertOp<Op, TensorView, Shape>(op, shape_of)).kernel;
}

}  // namespace

void CudaAttention(const AttentionOp<TensorView>& op, Stream& stream) {
  switch (KernelOf(op)) {
    case cuda::AttentionKernel::kOwn:
      return cuda::OwnAttention(op, stream);
    case cuda::AttentionKernel::kPacked:
      return cuda::PackedAttention(op, stream);
    case cuda::AttentionKernel::kCudnn:
      return cuda::CudnnAttention(op, stream);
    case cuda::AttentionKernel::kRows:
      return cuda::HasWarpgroups(stream) ? cuda::RowsAttention(op, stream)
                                         : cuda::CudnnAttention(op, stream);
    case cuda::AttentionKernel::kInTurn:
      MR_CHECK(false, "attention in turn, which only gradients are");
  }
}

void CudaAttentionGrad(const AttentionGradOp<TensorView>& op, Stream& stream) {
  switch (KernelOf(op)) {
    case cuda::AttentionKernel::kOwn:
      return cuda::OwnAttentionGrad(op, stream);
    case cuda::AttentionKernel::kPacked:
      return cuda::PackedAttentionGrad(op, stream);
    case cuda::AttentionKernel::kCudnn:
      return cuda::CudnnAttentionGrad(op, stream);
    case cuda::AttentionKernel::kRows:
      MR_CHECK(false, "a gradient of attention by rows, which there is none of");
    case cuda::AttentionKernel::kInTurn:
      return cuda::HasWarpgroups(stream) ? cuda::InTurnAttentionGrad(op, stream)
                                         : cuda::CudnnAttentionGrad(op, stream);
  }
}

}  // namespace millrace
