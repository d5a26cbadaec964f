#include "kernels/cpu/elementwise/elementwise.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/magnitude.h"
#include "kernels/cpu/rows.h"

namespace millrace::cpu {
namespace {

void CheckNumel(const TensorView& a, const TensorView& b, const char* op) {
  CheckFloat(a, op);
  CheckFloat(b, op);
  MR_CHECK_EQ(a.numel(), b.numel(), "{}: elements of {} and {}", op, ToString(a.layout),
              ToString(b.layout));
}

// out = or += x, converted. Equal dtypes copy bits, NaN payloads included.
void CopyOrAdd(const TensorView& x, const TensorView& out, bool accumulate, const char* op) {
  CheckNumel(x, out, op);
  const Row in = Flat(x, op), to = Flat(out, op);
  if (!accumulate && x.dtype() == out.dtype()) {
    if (x.numel() > 0) std::memmove(out.data, x.data, static_cast<size_t>(x.bytes()));
    return;
  }
  ForChunks(x.numel(), [&](int64_t c, int64_t n) {
    float buffer[kChunk];
    StoreOrAdd(to, c, n, Load(in, c, n, buffer), accumulate);
  });
}

// By tiles, of which the lines of both sides stay in a cache.
void TurnRows(const TensorView& x, const TensorView& out, int64_t size) {
  constexpr int64_t kTile = 16;
  const int64_t rows = x.dim(0), columns = x.dim(1);
  for (int64_t top = 0; top < rows; top += kTile)
    for (int64_t left = 0; left < columns; left += kTile)
      for (int64_t r = top; r < std::min(rows, top + kTile); ++r)
        for (int64_t c = left; c < std::min(columns, left + kTile); ++c)
          std::memcpy(out.data + (r + c * out.stride(1)) * size,
                      x.data + (r * x.stride(0) + c) * size, static_cast<size_t>(size));
}

}  // namespace

void Add(const AddOp<TensorView>& op, Stream&) {
  CheckNumel(op.a, op.out, "add");
  CheckNumel(op.b, op.out, "add");
  const Row a_row = Flat(op.a, "a"), b_row = Flat(op.b, "b"), out = Flat(op.out, "out");
  ForChunks(op.out.numel(), [&](int64_t c, int64_t n) {
    float a_buffer[kChunk], b_buffer[kChunk];
    const float* a = Load(a_row, c, n, a_buffer);
    const float* b = Load(b_row, c, n, b_buffer);
    float* sum = Target(out, c, a_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) sum[i] = a[i] + b[i];
    Store(out, c, n, sum);
  });
}

void AddBias(const AddBiasOp<TensorView>& op, Stream&) {
  CheckNumel(op.x, op.out, "add_bias");
  CheckFloat(op.bias, "bias");
  MR_CHECK_EQ(op.bias.numel(), op.x.dim(1), "add_bias: elements of the bias, columns of x");
  const Row bias_row = AsRow(op.bias);
  for (int64_t r = 0; r < op.x.dim(0); ++r)
    ForChunks(op.x.dim(1), [&](int64_t c, int64_t n) {
      float x_buffer[kChunk], bias_buffer[kChunk];
      const float* x = Load(RowAt(op.x, r), c, n, x_buffer);
      const float* bias = Load(bias_row, c, n, bias_buffer);
      float* sum = Target(RowAt(op.out, r), c, x_buffer);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) sum[i] = x[i] + bias[i];
      Store(RowAt(op.out, r), c, n, sum);
    });
}

void CopyRows(const CopyRowsOp<TensorView>& op, Stream&) {
  const int64_t rows = op.x.dim(0), columns = op.x.dim(1), size = Bytes(op.x.dtype());
  const bool turned = columns > 1 && op.out.stride(1) != 1;
  MR_CHECK(op.out.dim(0) == rows && op.out.dim(1) == columns && op.out.dtype() == op.x.dtype() &&
               (columns <= 1 || op.x.stride(1) == 1) &&
               (!turned || rows <= 1 || op.out.stride(0) == 1),
           "copy_rows: x is {}, out is {}", ToString(op.x.layout), ToString(op.out.layout));
  if (turned) return TurnRows(op.x, op.out, size);
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(op.out.data + r * op.out.stride(0) * size, op.x.data + r * op.x.stride(0) * size,
                static_cast<size_t>(columns * size));
}

void JoinColumns(const JoinColumnsOp<TensorView>& op, Stream&) {
  const int64_t parts = op.x.dim(0), rows = op.x.dim(1), width = op.x.dim(2),
                columns = op.out.dim(1), size = Bytes(op.x.dtype());
  MR_CHECK(op.x.layout.contiguous() && op.out.layout.contiguous() &&
               op.x.dtype() == op.out.dtype() && rows == op.out.dim(0) && columns <= parts * width,
           "join_columns: x is {}, out is {}", ToString(op.x.layout), ToString(op.out.layout));
  for (int64_t i = 0; i * width < columns; ++i)
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(op.out.data + (r * columns + i * width) * size,
                  op.x.data + (i * rows + r) * width * size,
                  static_cast<size_t>(std::min(width, columns - i * width) * size));
}

void Cast(const CastOp<TensorView>& op, Stream&) { CopyOrAdd(op.x, op.out, false, "cast"); }

void Concat(const ConcatOp<TensorView>& op, Stream&) {
  CopyOrAdd(op.x, op.out, op.update == Update::kAccumulate, "concat");
}

void Accumulate(const AccumulateOp<TensorView>& op, Stream&) {
  CopyOrAdd(op.x, op.out, op.update == Update::kAccumulate, "accumulate");
}

void ZeroRanges(const ZeroRangesOp<TensorView>& op, Stream&) {
  const Row flat = Flat(op.flat, "flat");
  const int64_t size = Bytes(flat.dtype);
  for (const Range& range : *op.ranges) {
    MR_CHECK(0 <= range.begin && range.begin <= range.end && range.end <= op.flat.numel(),
             "zero_ranges: [{}, {}) of {} elements", range.begin, range.end, op.flat.numel());
    if (range.begin < range.end)
      std::memset(flat.data + range.begin * size, 0,
                  static_cast<size_t>((range.end - range.begin) * size));
  }
}

void ColumnSum(const ColumnSumOp<TensorView>& op, Stream&) {
  CheckFloat(op.x, "x");
  CheckFloat(op.out, "out");
  MR_CHECK_EQ(op.x.dim(1), op.out.dim(0), "column_sum: columns of x, elements of out");
  const int64_t rows = op.x.dim(0);
  ForChunks(op.x.dim(1), [&](int64_t c, int64_t n) {
    float total[kChunk], part[kChunk], buffer[kChunk];
    std::fill_n(total, n, 0.0f);
    for (int64_t begin = 0; begin < rows; begin += kSumRows) {
      std::fill_n(part, n, 0.0f);
      for (int64_t r = begin; r < std::min(rows, begin + kSumRows); ++r) {
        const float* x = Load(RowAt(op.x, r), c, n, buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) part[i] += x[i];
      }
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) total[i] += part[i];
    }
    StoreOrAdd(AsRow(op.out), c, n, total, op.update == Update::kAccumulate);
  });
  RaiseMagnitude(op.magnitude, op.x);
}

}  // namespace millrace::cpu
