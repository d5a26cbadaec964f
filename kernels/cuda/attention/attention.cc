#include "kernels/cuda/attention/attention.h"

#include "kernels/cuda/attention/attention_cudnn.h"
#include "kernels/cuda/attention/attention_own.h"
#include "kernels/ops/attention_choice.h"

namespace millrace {
namespace {

template <template <class> class Op>
bool ByCudnn(const Op<TensorView>& op) {
  const auto shape_of = [](const TensorView& view) {
    return Shape{view.layout, static_cast<bool>(view)};
  };
  return cuda::ChooseAttention(ConvertOp<Op, TensorView, Shape>(op, shape_of)).kernel ==
         cuda::AttentionKernel::kCudnn;
}

}  // namespace

void CudaAttention(const AttentionOp<TensorView>& op, Stream& stream) {
  ByCudnn(op) ? cuda::CudnnAttention(op, stream) : cuda::OwnAttention(op, stream);
}

void CudaAttentionGrad(const AttentionGradOp<TensorView>& op, Stream& stream) {
  ByCudnn(op) ? cuda::CudnnAttentionGrad(op, stream) : cuda::OwnAttentionGrad(op, stream);
}

}  // namespace millrace
