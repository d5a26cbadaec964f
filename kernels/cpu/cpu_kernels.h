// The reference backend: every entry of the kernel table, on the calling thread. A Stream argument
// is not used: the op has run when its entry returns.
//
// Bits     A result depends on operand values, shapes and dtypes; not on addresses, alignment,
//          threads or strides (but a matmul operand that is a transposed view may take another GEMM
//          kernel than the same operand stored the other way).
// Machine  x86-64-v3; OpenBLAS picks its kernels for the CPU at hand, so bits may differ between
//          CPU models.
#pragma once

#include "kernels/ops/kernel_table.h"

namespace millrace {

const KernelTable& CpuKernels();

}  // namespace millrace
