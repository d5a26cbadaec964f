#include "kernels/cuda/elementwise/elementwise.h"

#include <algorithm>

#include "kernels/cuda/elementwise/elementwise_launch.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using namespace cuda;

void CheckNumel(const TensorView& a, const TensorView& b, const char* op) {
  MR_CHECK_EQ(a.numel(), b.numel(), "{}: elements of {} and {}", op, ToString(a.layout),
              ToString(b.layout));
}

// out = or += x, converted.
void CopyOrAdd(const TensorView& x, const TensorView& out, Update update, const char* op,
               Stream& stream) {
  CheckNumel(x, out, op);
  LaunchCopy(FlatOf(x, "x", kF16Too), FlatOf(out, "out", kF16Too), update == Update::kAccumulate,
             x.numel(), LaunchOn(stream));
}

}  // namespace

void CudaAdd(const AddOp<TensorView>& op, Stream& stream) {
  CheckNumel(op.a, op.out, "add");
  CheckNumel(op.b, op.out, "add");
  LaunchAdd(FlatOf(op.a, "a", kF16Too), FlatOf(op.b, "b", kF16Too), FlatOf(op.out, "out", kF16Too),
            op.out.numel(), LaunchOn(stream));
}

void CudaAddBias(const AddBiasOp<TensorView>& op, Stream& stream) {
  const int64_t rows = op.x.dim(0), columns = op.x.dim(1);
  LaunchAddBias(RowsOf(op.x, "x", kF16Too), ColumnsOf(op.bias, columns, "bias", kF16Too),
                RowsOf(op.out, rows, columns, "out", kF16Too), rows, columns, LaunchOn(stream));
}

void CudaCopyRows(const CopyRowsOp<TensorView>& op, Stream& stream) {
  const int64_t rows = op.x.dim(0), columns = op.x.dim(1), size = Bytes(op.x.dtype());
  const bool turned = columns > 1 && op.out.stride(1) != 1;
  MR_CHECK(op.out.dim(0) == rows && op.out.dim(1) == columns && op.out.dtype() == op.x.dtype() &&
               (columns <= 1 || op.x.stride(1) == 1) &&
               (!turned || rows <= 1 || op.out.stride(0) == 1),
           "copy_rows: x is {}, out is {}", ToString(op.x.layout), ToString(op.out.layout));
  if (rows == 0 || columns == 0) return;
  if (turned)
    return LaunchTurnRows(op.x.data, op.out.data,
                          {rows, columns, op.x.stride(0), op.out.stride(1), size},
                          LaunchOn(stream));
  const auto bytes = [&](int64_t elements) { return static_cast<size_t>(elements * size); };
  if (rows == 1) {  // of any length: a pitch has its limit
    MR_CUDA(cudaMemcpyAsync(op.out.data, op.x.data, bytes(columns), cudaMemcpyDeviceToDevice,
                            LaunchOn(stream).stream));
    return;
  }
  MR_CUDA(cudaMemcpy2DAsync(op.out.data, bytes(op.out.stride(0)), op.x.data, bytes(op.x.stride(0)),
                            bytes(columns), static_cast<size_t>(rows), cudaMemcpyDeviceToDevice,
                            LaunchOn(stream).stream));
}

void CudaJoinColumns(const JoinColumnsOp<TensorView>& op, Stream& stream) {
  const int64_t parts = op.x.dim(0), rows = op.x.dim(1), width = op.x.dim(2),
                columns = op.out.dim(1), size = Bytes(op.x.dtype());
  MR_CHECK(op.x.layout.contiguous() && op.out.layout.contiguous() &&
               op.x.dtype() == op.out.dtype() && rows == op.out.dim(0) && columns <= parts * width,
           "join_columns: x is {}, out is {}", ToString(op.x.layout), ToString(op.out.layout));
  const auto bytes = [&](int64_t elements) { return static_cast<size_t>(elements * size); };
  if (rows == 0) return;
  for (int64_t i = 0; i * width < columns; ++i)
    MR_CUDA(cudaMemcpy2DAsync(
        op.out.data + i * width * size, bytes(columns), op.x.data + i * rows * width * size,
        bytes(width), bytes(std::min(width, columns - i * width)), static_cast<size_t>(rows),
        cudaMemcpyDeviceToDevice, LaunchOn(stream).stream));
}

void CudaCast(const CastOp<TensorView>& op, Stream& stream) {
  CopyOrAdd(op.x, op.out, Update::kOverwrite, "cast", stream);
}

void CudaConcat(const ConcatOp<TensorView>& op, Stream& stream) {
  CopyOrAdd(op.x, op.out, op.update, "concat", stream);
}

void CudaAccumulate(const AccumulateOp<TensorView>& op, Stream& stream) {
  CopyOrAdd(op.x, op.out, op.update, "accumulate", stream);
}

// Zeros have the same bits in all types: f16's are bf16's, and what is no float is so many f32.
void CudaZeroRanges(const ZeroRangesOp<TensorView>& op, Stream& stream) {
  TensorView view = op.flat;
  int64_t words = 1;  // of an element
  if (view.dtype() == DType::kF16) {
    view.layout.dtype = DType::kBF16;
  } else if (view.dtype() != DType::kF32 && view.dtype() != DType::kBF16) {
    words = Bytes(view.dtype()) / Bytes(DType::kF32);
    MR_CHECK(words > 0 && view.layout.contiguous(), "zero_ranges: {}", ToString(view.layout));
    view.layout = DenseLayout(DType::kF32, {op.flat.numel() * words});
  }
  const Rows flat = FlatOf(view, "flat");
  const Launch launch = LaunchOn(stream);
  Ranges ranges;
  int64_t longest = 0;
  const auto flush = [&] {
    if (ranges.count > 0) LaunchZeroRanges(flat, ranges, longest, launch);
    ranges.count = 0, longest = 0;
  };
  for (const Range& range : *op.ranges) {
    MR_CHECK(0 <= range.begin && range.begin <= range.end && range.end <= op.flat.numel(),
             "zero_ranges: [{}, {}) of {} elements", range.begin, range.end, op.flat.numel());
    if (range.begin == range.end) continue;
    longest = std::max(longest, (range.end - range.begin) * words);
    ranges.of[ranges.count++] = {range.begin * words, range.end * words};
    if (ranges.count == kRangesPerLaunch) flush();
  }
  flush();
}

}  // namespace millrace
