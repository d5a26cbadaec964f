// Operands of an op, checked and turned into what kernels take (rows.h). Violations throw
// Error(kInternal).
#pragma once

#include <initializer_list>

#include "kernels/cuda/rows.h"
#include "kernels/cuda/sequence.h"
#include "runtime/base/cuda/launch.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cuda {

// Dtypes that a kernel is compiled for. Those of models without experts and scans are there in f16.
enum Floats16 { kBF16Alone, kF16Too };

// An absent view gives absent Rows. `name` is the operand's, for messages. f32 or bf16, or f16 with
// kF16Too.
Rows RowsOf(const TensorView& view, const char* name,
            Floats16 allowed = kBF16Alone);  // [R,C], neighbours in a row
Rows FlatOf(const TensorView& view, const char* name,
            Floats16 allowed = kBF16Alone);  // contiguous, any rank: one row
// RowsOf a [rows, columns], or FlatOf a [columns].
Rows RowsOf(const TensorView& view, int64_t rows, int64_t columns, const char* name,
            Floats16 allowed = kBF16Alone);
Rows ColumnsOf(const TensorView& view, int64_t columns, const char* name,
               Floats16 allowed = kBF16Alone);

// f32 or bf16 [B,T,C] or [B,T,H,C], neighbours in a row.
Sequence SequenceOf(const TensorView& view, const char* name);

float* FloatsOf(const TensorView& view, int64_t n,
                const char* name);  // dense f32 [n]; nullptr when absent
int32_t* IntsOf(const TensorView& view, int64_t n,
                const char* name);  // dense i32, n elements; nullptr when absent
double* DoublesOf(const TensorView& view, int64_t n,
                  const char* name);  // contiguous f64, n elements
StepScalars* ScalarsOf(const TensorView& scalars);
TokenRows TokensOf(const TensorView& tokens, const TensorView& scalars, int64_t parity_stride);
ValueRows ValuesOf(const TensorView& values, const TokenRows& tokens, const char* name);

// Scratch of at least `bytes`, aligned to 16 bytes.
std::byte* ScratchOf(const TensorView& scratch, int64_t bytes, const char* op);

// The dtype that all present rows share, or the mix that has theirs. `others`: what the kernel
// reads and writes by MixOf that.
Elements ElementsOf(std::initializer_list<Rows> rows, std::initializer_list<Rows> others = {});

// The mix of dtypes that are f32, bf16 or f16.
Elements MixOf(std::initializer_list<DType> dtypes);

Launch LaunchOn(Stream& stream);

}  // namespace millrace::cuda
