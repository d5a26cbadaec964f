// Products of matrices, and sums of columns (the gradient of a bias), on CUDA.
//
// Scratch  As WorkspaceBytes(op, kCuda) says, aligned to 256 bytes.
// Bits     The same for the same op in every run on one kind of GPU, library version and tuning
//          table; whether a product overwrites or accumulates does not change it. They may differ
//          between dtypes and strides of operands, and of results where Rounding is kBackend: those
//          are another product to cuBLASLt.
// Bias     cuBLASLt may round a product to a result's dtype of 16 bits before it adds the bias,
//          depending on the algorithm (seen with lines that are not aligned to 16 bytes): then the
//          error of the sum is up to 2^-8 |product| (f16: 2^-11) larger than one rounding's.
// FP8      What cuBLASLt takes of it is in kernels/ops/cuda_float8.h. Tensor cores add the products
//          of one step (32 along the sum) with about 14 bits; steps are added in f32. Both scales
//          are multiplied by in f32.
#pragma once

#include "kernels/ops/model_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

// Up to four rows of bf16 by a weight that lies by columns, or sixty-four by one of few columns,
// into bf16, not added: kernels of our own (few_rows.h), which read the weight at the rate of
// memory.
// Else one launch of cuBLASLt (matmul_plans.h), f32 operands without TF32. An activation is a
// second launch, over the stored value before it, so that recomputing from that value gives the
// same bits. In some cases the f32 product goes through scratch instead, whole or by tiles: see
// MatmulRoute (kernels/ops/matmul_key.h).
void CudaMatmul(const MatmulOp<TensorView>& op, Stream& stream);

// One launch of cuBLASLt for all matrices. f32 operands go into f32.
void CudaBatchedMatmul(const BatchedMatmulOp<TensorView>& op, Stream& stream);

// Rows are summed in f32 in an order that depends on the shape and on x's dtype only.
void CudaColumnSum(const ColumnSumOp<TensorView>& op, Stream& stream);

}  // namespace millrace
