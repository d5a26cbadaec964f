// Attention at the sizes of real models against double, on a few rows of every result.
#pragma once

#include <memory>
#include <optional>

#include "kernels/ops/attention_choice.h"
#include "kernels/ops/kernel_table.h"
#include "tests/kernels/cuda/attention_operands.h"

namespace millrace::test {

// Of attention alone: by this implementation, or by the one that shapes choose.
KernelTable TableOf(std::optional<cuda::AttentionKernel> kernel);

struct Gpu {
  CudaDevice device{0};
  std::unique_ptr<Stream> stream = device.MakeStream(StreamRole::kCompute);
  DeviceOperands operands{device, *stream};

  void Run(const KernelTable& table, const AttentionOps& ops) {
    table.attention(ops.forward, *stream);
    table.attention_grad(ops.grad, *stream);
    stream->Sync();
  }
};

// Host copies of an op that has run.
AttentionGradOp<TensorView> OnHost(DeviceOperands& operands, const AttentionGradOp<TensorView>& op);

// The same op with results and scratch of its own.
AttentionOps Again(DeviceOperands& operands, const AttentionOps& ops, const AttentionSize& size);

// Batch row b.
TensorView RowOf(TensorView view, int64_t b);

bool SameResults(const AttentionGradOp<TensorView>& a, const AttentionGradOp<TensorView>& b);

// Rounding of what enters a product, and the factor on bounds that hold for sums in f32.
struct Arithmetic {
  double operand, f32;
};
constexpr Arithmetic kF32{0, 1}, kTensorCores{0x1p-8, 8};

// Rows of every result of an op on the host: the first, the last, and around tile borders.
void CheckSamples(const AttentionGradOp<TensorView>& op, const Arithmetic& rounding);

}  // namespace millrace::test
