#include "kernels/cuda/attention/attention_cudnn.h"

#include <algorithm>

#include "kernels/cuda/attention/attention_check.h"
#include "kernels/cuda/attention/attention_plans.h"
#include "kernels/cuda/attention/attention_split.h"
#include "kernels/ops/attention_choice.h"
#include "runtime/base/error.h"

namespace millrace::cuda {
namespace {

constexpr int64_t kAlignment = 16;

template <template <class> class Op>
Op<Shape> ShapeOf(const Op<TensorView>& op) {
  return ConvertOp<Op, TensorView, Shape>(op, [](const TensorView& view) {
    return Shape{view.layout, static_cast<bool>(view)};
  });
}

struct Operand {
  AttentionOperand which;
  const TensorView* view;
  bool kv;  // one head per key/value head
};
std::vector<Operand> OperandsOf(const AttentionOp<TensorView>& op) {
  return {{kQ, &op.q, false}, {kK, &op.k, true}, {kV, &op.v, true}, {kOut, &op.out, false}};
}
std::vector<Operand> OperandsOf(const AttentionGradOp<TensorView>& op) {
  return {{kQ, &op.q, false},     {kK, &op.k, true},         {kV, &op.v, true},
          {kOut, &op.out, false}, {kDOut, &op.d_out, false}, {kDQ, &op.d_q, false},
          {kDK, &op.d_k, true},   {kDV, &op.d_v, true}};
}

AttentionProblem ProblemOf(const AttentionOp<TensorView>& op) {
  return {.grad = false, .lse = static_cast<bool>(op.lse), .scale = op.scale};
}
AttentionProblem ProblemOf(const AttentionGradOp<TensorView>& op) {
  return {.grad = true, .deterministic = op.deterministic, .scale = op.scale};
}

// f(problem, data) for every call that the op is cut into.
template <template <class> class Op, class F>
void ForEachCall(const Op<TensorView>& op, ChunkMask mask, F&& f) {
  const AttentionDims d = CheckAttention(op);
  MR_CHECK(!d.split(), "{}: a call of sequences that are split", Op<TensorView>::kName);
  if (d.empty()) return;
  const auto shape = ShapeOf(op);
  const AttentionChoice choice = ChooseAttention(shape);
  MR_CHECK(choice.why.empty(), "{} given to cuDNN: {}", Op<TensorView>::kName, choice.why);
  const AttentionSlices slices = SlicesOf(shape);
  const std::vector<Operand> operands = OperandsOf(op);
  AttentionProblem problem = ProblemOf(op);
  problem.f16 = op.q.dtype() == DType::kF16;
  problem.causal = mask == ChunkMask::kCausal;
  problem.length = d.rows;
  problem.depth = d.depth;
  for (const Operand& operand : operands) {
    const Layout& layout = operand.view->layout;
    auto& strides = problem.strides[operand.which];
    strides = {layout.strides[0], layout.strides[1], layout.strides[2]};
    // The stride of a dimension of one is never used, but cuDNN looks at it: a dense one.
    if (layout.dims[2] == 1) strides[2] = d.depth;
    if (d.batch == 1) strides[0] = strides[1] * d.rows;
  }
  for (int64_t b = 0; b < d.batch; b += slices.batch) {
    for (int64_t kv = 0; kv < d.kv_heads; kv += slices.kv_heads) {
      problem.batch = std::min(slices.batch, d.batch - b);
      problem.kv_heads = std::min(slices.kv_heads, d.kv_heads - kv);
      problem.heads = problem.kv_heads * d.group();
      AttentionData data;
      for (const Operand& operand : operands) {
        const int64_t head = operand.kv ? kv : kv * d.group();
        const int64_t offset = b * operand.view->stride(0) + head * operand.view->stride(2);
        data.operands[operand.which] = operand.view->data + offset * Bytes(operand.view->dtype());
      }
      if (op.lse) data.lse = op.lse.template as<float>() + (b * d.heads + kv * d.group()) * d.rows;
      f(problem, data);
    }
  }
}

template <template <class> class Op>
void Enqueue(const Op<TensorView>& op, ChunkMask mask, Stream& stream) {
  CudaStream& cuda = AsCuda(stream);
  AttentionPlans& plans = cuda.device().Attached<AttentionPlans>();
  const int64_t bytes = op.scratch ? op.scratch.bytes() : 0;
  for (const Operand& operand : OperandsOf(op))
    MR_CHECK(reinterpret_cast<uintptr_t>(operand.view->data) % kAlignment == 0,
             "{} given to cuDNN: an operand {} lies at {}, which is not a multiple of {} bytes",
             Op<TensorView>::kName, ToString(operand.view->layout),
             static_cast<const void*>(operand.view->data), kAlignment);
  ForEachCall(op, mask, [&](const AttentionProblem& problem, const AttentionData& data) {
    plans.Enqueue(problem, data, op.scratch.data, bytes, cuda.get());
  });
}

template <template <class> class Op>
int64_t MostBytes(const Op<TensorView>& op, CudaDevice& device) {
  AttentionPlans& plans = device.Attached<AttentionPlans>();
  int64_t bytes = 0;
  ForEachCall(op, ChunkMask::kCausal, [&](const AttentionProblem& problem, const AttentionData&) {
    bytes = std::max(bytes, plans.Bytes(problem));
  });
  return bytes;
}

}  // namespace

void CudnnAttention(const AttentionOp<TensorView>& op, Stream& stream) {
  op.rows.split() ? SplitAttention(op, stream) : CudnnChunk(op, ChunkMask::kCausal, stream);
}
void CudnnAttentionGrad(const AttentionGradOp<TensorView>& op, Stream& stream) {
  op.rows.split() ? SplitAttentionGrad(op, stream) : CudnnChunk(op, ChunkMask::kCausal, stream);
}
void CudnnChunk(const AttentionOp<TensorView>& op, ChunkMask mask, Stream& stream) {
  Enqueue(op, mask, stream);
}
void CudnnChunk(const AttentionGradOp<TensorView>& op, ChunkMask mask, Stream& stream) {
  Enqueue(op, mask, stream);
}

int64_t CudnnBytes(const AttentionOp<TensorView>& op, CudaDevice& device) {
  return MostBytes(op, device);
}
int64_t CudnnBytes(const AttentionGradOp<TensorView>& op, CudaDevice& device) {
  return MostBytes(op, device);
}

}  // namespace millrace::cuda
