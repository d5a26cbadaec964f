// Products in FP8 on CUDA: what cuBLASLt takes of them on Hopper, from shapes alone.
//
// Operands  [lines, sum]: elements along the sum are neighbours (a, and b's transpose), each line
//           begins at a multiple of 16 bytes. m, n and k are multiples of 16. One operand is e4m3.
// Scales    kTensor  [1,1].
//           kVectors [lines, blocks of the sum], those of neighbouring lines are neighbours.
//           kBlocks  [blocks of lines, blocks of the sum up to a multiple of 4], those along the
//                    sum are neighbours. Not of both operands.
// Source    cuBLAS 13.1 documentation, "128-element 1D and 128x128 2D Block Scaling For FP8".
#pragma once

#include <cstdint>
#include <string>

#include "kernels/ops/fp8_ops.h"
#include "kernels/ops/matmul_key.h"
#include "kernels/ops/shape.h"

namespace millrace::cuda {

// Of m, n, k and what a line's bytes are a multiple of.
inline constexpr int64_t kFloat8Multiple = 16;

// Scales of an operand [lines, sum] in place, from the first element on.
Layout ScalesInPlace(KeyScales kind, int64_t lines, int64_t sum);

// Whether an activation may be quantized as it is formed, to that dtype.
constexpr bool CanActivate(ActivationKind kind, DType out) {
  return kind != ActivationKind::kRelu2 && out == DType::kE4M3;
}

// "" or the reason.
std::string WhyNoFloat8Product(const MatmulOp<Shape>& op);
std::string WhyNoQuantize(const QuantizeOp<Shape>& op);

}  // namespace millrace::cuda
