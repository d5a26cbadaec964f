// Rows of f32, bf16 or f16, read and written as float in chunks of at most kChunk elements.
//
// An f32 row with stride 1 is used in place; anything else passes through the caller's
// buffer (kChunk floats on its stack). So a kernel is written once, for float, and its bits
// cannot depend on strides.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/ops/cpu_blocking.h"
#include "runtime/base/dtype.h"
#include "runtime/base/error.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

struct Row {
  std::byte* data;
  int64_t stride;  // elements between neighbours
  DType dtype;     // kF32, kBF16 or kF16

  bool direct() const { return dtype == DType::kF32 && stride == 1; }
  float* f32() const { return reinterpret_cast<float*>(data); }
  BFloat16* bf16() const { return reinterpret_cast<BFloat16*>(data); }
};

inline void CheckFloat(const TensorView& v, const char* name) {
  MR_CHECK(v.dtype() == DType::kF32 || IsFloatOf16Bits(v.dtype()),
           "{} is {}; f32, bf16 or f16 is allowed", name, Name(v.dtype()));
}

// Row r of a 2-D view.
inline Row RowAt(const TensorView& v, int64_t r) {
  return {v.data + r * v.stride(0) * Bytes(v.dtype()), v.dim(1) == 1 ? 1 : v.stride(1), v.dtype()};
}

// The row along the last dimension of a 3-D view.
inline Row RowAt(const TensorView& v, int64_t i, int64_t j) {
  const int64_t offset = i * v.stride(0) + j * v.stride(1);
  return {v.data + offset * Bytes(v.dtype()), v.dim(2) == 1 ? 1 : v.stride(2), v.dtype()};
}

// The row along the last dimension of a 4-D view.
inline Row RowAt(const TensorView& v, int64_t i, int64_t j, int64_t k) {
  const int64_t offset = i * v.stride(0) + j * v.stride(1) + k * v.stride(2);
  return {v.data + offset * Bytes(v.dtype()), v.dim(3) == 1 ? 1 : v.stride(3), v.dtype()};
}

// A 1-D view.
inline Row AsRow(const TensorView& v) {
  return {v.data, v.dim(0) == 1 ? 1 : v.stride(0), v.dtype()};
}

// A contiguous view of any rank.
inline Row Flat(const TensorView& v, const char* name) {
  MR_CHECK(v.layout.contiguous(), "{} is {}; it must be contiguous", name, ToString(v.layout));
  return {v.data, 1, v.dtype()};
}

// Of f16. Not inline: a call per chunk costs less than compiling them into every kernel.
void LoadF16(Row row, int64_t begin, int64_t n, float* buffer);
void StoreF16(Row row, int64_t begin, int64_t n, const float* values);
void RoundToF16(float* values, int64_t n);

// Elements [begin, begin + n) as float: the row's own memory, or `buffer` filled from it.
inline const float* Load(Row row, int64_t begin, int64_t n, float* buffer) {
  if (row.dtype == DType::kF32) {
    const float* in = row.f32() + begin * row.stride;
    if (row.stride == 1) return in;
    for (int64_t i = 0; i < n; ++i) buffer[i] = in[i * row.stride];
  } else if (row.dtype == DType::kF16) {
    LoadF16(row, begin, n, buffer);
  } else if (row.stride == 1) {
    ConvertToFloat(row.bf16() + begin, buffer, n);
  } else {
    const BFloat16* in = row.bf16() + begin * row.stride;
    for (int64_t i = 0; i < n; ++i) buffer[i] = ToFloat(in[i * row.stride]);
  }
  return buffer;
}

// Where to compute elements that Store will then be given: the row's own memory, or `buffer`.
inline float* Target(Row row, int64_t begin, float* buffer) {
  return row.direct() ? row.f32() + begin : buffer;
}

// Writes n values to [begin, begin + n), rounding once; nothing to do when they were computed in
// place.
inline void Store(Row row, int64_t begin, int64_t n, const float* values) {
  if (row.dtype == DType::kF32) {
    float* out = row.f32() + begin * row.stride;
    if (row.stride == 1 && out == values) return;
    for (int64_t i = 0; i < n; ++i) out[i * row.stride] = values[i];
  } else if (row.dtype == DType::kF16) {
    StoreF16(row, begin, n, values);
  } else if (row.stride == 1) {
    ConvertToBFloat16(values, row.bf16() + begin, n);
  } else {
    BFloat16* out = row.bf16() + begin * row.stride;
    for (int64_t i = 0; i < n; ++i) out[i * row.stride] = ToBFloat16(values[i]);
  }
}

// [begin, begin + n) = or += values; the addition is in f32 with one rounding.
inline void StoreOrAdd(Row row, int64_t begin, int64_t n, const float* values, bool accumulate) {
  if (!accumulate) return Store(row, begin, n, values);
  float buffer[kChunk];
  const float* old = Load(row, begin, n, buffer);
  float* sum = Target(row, begin, buffer);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) sum[i] = old[i] + values[i];
  Store(row, begin, n, sum);
}

// Rounds values to the dtype and back: what a reader of a stored row would see.
inline void RoundTo(DType dtype, float* values, int64_t n) {
  if (dtype == DType::kF32) return;
  if (dtype == DType::kF16) return RoundToF16(values, n);
  for (int64_t i = 0; i < n; ++i) values[i] = ToFloat(ToBFloat16(values[i]));
}

// f(begin, n) for the chunks of [0, size).
template <class F>
inline void ForChunks(int64_t size, F&& f) {
  for (int64_t begin = 0; begin < size; begin += kChunk) f(begin, std::min(kChunk, size - begin));
}

// Hands out consecutive pieces of a scratch view, in floats.
class Scratch {
 public:
  explicit Scratch(const TensorView& view)
      : next_(view.as<float>()), left_(view ? view.bytes() / 4 : 0) {}

  float* Take(int64_t floats) {
    MR_CHECK_LE(floats, left_, "scratch is smaller than WorkspaceBytes of the op");
    float* piece = next_;
    next_ += floats;
    left_ -= floats;
    return piece;
  }

 private:
  float* next_;
  int64_t left_;
};

}  // namespace millrace::cpu
