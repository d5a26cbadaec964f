#include "kernels/cpu/mamba/mamba_conv.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/documents.h"
#include "kernels/cpu/mamba/mamba_rows.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

namespace millrace::cpu {
namespace {

// [B,T,n], the last dimension's neighbours in any stride.
void CheckRows(const TensorView& view, const TensorView& like, int64_t columns, const char* name) {
  CheckFloat(view, name);
  MR_CHECK(view.layout.rank == 3 && view.dim(0) == like.dim(0) && view.dim(1) == like.dim(1) &&
               view.dim(2) == columns,
           "mamba_conv: {} is {}, x is {}", name, ToString(view.layout), ToString(like.layout));
}

void CheckVector(const TensorView& view, int64_t n, const char* name) {
  CheckFloat(view, name);
  MR_CHECK(view.layout.rank == 1 && view.dim(0) == n, "mamba_conv: {} is {}, not [{}]", name,
           ToString(view.layout), n);
}

// What both directions read.
template <class Op>
void CheckOperands(const Op& op) {
  const int64_t channels = op.x.dim(2), heads = op.dt_raw.dim(2);
  CheckRows(op.x, op.x, channels, "x");
  CheckRows(op.dt_raw, op.x, heads, "dt_raw");
  CheckFloat(op.weight, "weight");
  MR_CHECK(op.weight.layout.rank == 2 && op.weight.dim(0) == channels &&
               op.weight.dim(1) <= kConvWidth && op.weight.layout.contiguous(),
           "mamba_conv: weight is {}, x is {}", ToString(op.weight.layout), ToString(op.x.layout));
  CheckVector(op.bias, channels, "bias");
  CheckVector(op.dt_bias, heads, "dt_bias");
}

void CheckSteps(const TensorView& dt, const TensorView& dt_raw, const char* name) {
  CheckRows(dt, dt_raw, dt_raw.dim(2), name);
  MR_CHECK(dt.dtype() == DType::kF32 && dt.layout.contiguous(),
           "mamba_conv: {} is {}; dense f32 is needed", name, ToString(dt.layout));
}

// The channels of one position, as float in chunks.
Row RowOf(const TensorView& v, int64_t b, int64_t t) {
  return {v.data + (b * v.stride(0) + t * v.stride(1)) * Bytes(v.dtype()),
          v.dim(2) == 1 ? 1 : v.stride(2), v.dtype()};
}

// taps[k][i] = weight[begin + i, k].
using Taps = float[kConvWidth][kChunk];
void LoadTaps(const TensorView& weight, int64_t begin, int64_t n, Taps& taps) {
  const int64_t width = weight.dim(1);
  const Row all = Flat(weight, "weight");
  float column[1];
  for (int64_t i = 0; i < n; ++i)
    for (int64_t k = 0; k < width; ++k) taps[k][i] = *Load(all, (begin + i) * width + k, 1, column);
}

// The inputs of `width` positions, a ring of them: that of position t at t % width.
using Ring = float[kConvWidth][kChunk];

// u of position t of a document that begins with `first`: the bias, then taps in order, each with
// the ring's row of its position.
void Convolve(const Taps& taps, const Ring& ring, const float* bias, int64_t width, int64_t first,
              int64_t t, int64_t n, float* u) {
  for (int64_t i = 0; i < n; ++i) u[i] = bias[i];
  for (int64_t k = 0; k < width; ++k) {
    const int64_t source = t - (width - 1) + k;
    if (source < first) continue;
    const float* x = ring[source % width];
    const float* tap = taps[k];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) u[i] += tap[i] * x[i];
  }
}

void CopyRow(Row row, int64_t begin, int64_t n, float* to) {
  float buffer[kChunk];
  const float* from = Load(row, begin, n, buffer);
  std::copy_n(from, n, to);
}

// log(1 + e^v): log1p does not lose the small results.
double Softplus(double v) { return v > 20 ? v : std::log1p(std::exp(v)); }

// dt [heads] of one row.
template <class Op>
void StepsOfRow(const Op& op, Row raw_row, int64_t heads, float* dt) {
  ForChunks(heads, [&](int64_t h, int64_t n) {
    float raw_buffer[kChunk], bias_buffer[kChunk];
    const float* raw = Load(raw_row, h, n, raw_buffer);
    const float* bias = Load(AsRow(op.dt_bias), h, n, bias_buffer);
    for (int64_t i = 0; i < n; ++i) {
      const auto step = static_cast<float>(Softplus(double{raw[i] + bias[i]}));
      dt[h + i] = std::min(std::max(step, op.dt_min), op.dt_max);
    }
  });
}

void Steps(const MambaConvOp<TensorView>& op) {
  const int64_t heads = op.dt_raw.dim(2);
  for (int64_t b = 0; b < op.x.dim(0); ++b)
    for (int64_t t = 0; t < op.x.dim(1); ++t)
      StepsOfRow(op, RowOf(op.dt_raw, b, t), heads,
                 op.dt.as<float>() + (b * op.x.dim(1) + t) * heads);
}

// d_dt_raw, and sums[h] of it.
void StepsGrad(const MambaConvGradOp<TensorView>& op, double* sums) {
  const int64_t heads = op.dt_raw.dim(2);
  std::fill_n(sums, heads, 0.0);
  for (int64_t b = 0; b < op.x.dim(0); ++b)
    for (int64_t t = 0; t < op.x.dim(1); ++t)
      ForChunks(heads, [&](int64_t h, int64_t n) {
        float raw_buffer[kChunk], bias_buffer[kChunk], d_raw[kChunk];
        const float* raw = Load(RowOf(op.dt_raw, b, t), h, n, raw_buffer);
        const float* bias = Load(AsRow(op.dt_bias), h, n, bias_buffer);
        const float* d_dt = op.d_dt.as<float>() + (b * op.x.dim(1) + t) * heads + h;
        for (int64_t i = 0; i < n; ++i) {
          const float v = raw[i] + bias[i];
          const auto step = static_cast<float>(Softplus(double{v}));
          const bool clamped = step < op.dt_min || step > op.dt_max;
          d_raw[i] = clamped ? 0.0f : d_dt[i] * (v > 20 ? 1.0f : Sigmoid(v));
          sums[h + i] += double{d_raw[i]};
        }
        Store(RowOf(op.d_dt_raw, b, t), h, n, d_raw);
      });
}

// Of channels [begin, begin + n): d_x; sums of d_weight, tap by tap, and of d_bias behind them.
// d_x of a position is complete `width` - 1 positions later, and kept in a ring until then.
void ChannelsGrad(const MambaConvGradOp<TensorView>& op, int64_t begin, int64_t n, double* sums,
                  int64_t stride) {
  const int64_t width = op.weight.dim(1), length = op.x.dim(1);
  const Documents documents(op.documents, op.x.dim(0), length);
  Taps taps;
  Ring x, d_x;
  float bias_buffer[kChunk], u[kChunk], d_out_buffer[kChunk];
  LoadTaps(op.weight, begin, n, taps);
  const float* bias = Load(AsRow(op.bias), begin, n, bias_buffer);
  for (int64_t b = 0; b < op.x.dim(0); ++b)
    for (int64_t t = 0; t < length + width - 1; ++t) {
      if (t < length) {
        CopyRow(RowOf(op.x, b, t), begin, n, x[t % width]);
        const int64_t first = documents.FirstOf(b, t);
        Convolve(taps, x, bias, width, first, t, n, u);
        const float* d_out = Load(RowOf(op.d_out, b, t), begin, n, d_out_buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
          const float s = Sigmoid(u[i]);
          u[i] = d_out[i] * (s + u[i] * s * (1.0f - s));  // d_u
        }
        for (int64_t i = 0; i < n; ++i) sums[width * stride + i] += double{u[i]};
        std::fill_n(d_x[t % width], n, 0.0f);
        for (int64_t k = 0; k < width; ++k) {
          const int64_t source = t - (width - 1) + k;
          if (source < first) continue;
          const float* from = x[source % width];
          float* to = d_x[source % width];
          double* sum = sums + k * stride;
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) {
            to[i] += taps[k][i] * u[i];
            sum[i] += double{u[i]} * double{from[i]};
          }
        }
      }
      if (const int64_t done = t - (width - 1); done >= 0)
        Store(RowOf(op.d_x, b, done), begin, n, d_x[done % width]);
    }
}

}  // namespace

void MambaConv(const MambaConvOp<TensorView>& op, Stream&) {
  CheckOperands(op);
  CheckRows(op.out, op.x, op.x.dim(2), "out");
  CheckSteps(op.dt, op.dt_raw, "dt");
  const int64_t width = op.weight.dim(1);
  const Documents documents(op.documents, op.x.dim(0), op.x.dim(1));
  ForChunks(op.x.dim(2), [&](int64_t c, int64_t n) {
    Taps taps;
    Ring ring;
    float bias_buffer[kChunk], u[kChunk];
    LoadTaps(op.weight, c, n, taps);
    const float* bias = Load(AsRow(op.bias), c, n, bias_buffer);
    for (int64_t b = 0; b < op.x.dim(0); ++b)
      for (int64_t t = 0; t < op.x.dim(1); ++t) {
        CopyRow(RowOf(op.x, b, t), c, n, ring[t % width]);
        Convolve(taps, ring, bias, width, documents.FirstOf(b, t), t, n, u);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) u[i] *= Sigmoid(u[i]);
        Store(RowOf(op.out, b, t), c, n, u);
      }
  });
  Steps(op);
}

void MambaConvGrad(const MambaConvGradOp<TensorView>& op, Stream&) {
  CheckOperands(op);
  const int64_t channels = op.x.dim(2), width = op.weight.dim(1), heads = op.dt_raw.dim(2);
  CheckRows(op.d_out, op.x, channels, "d_out");
  CheckRows(op.d_x, op.x, channels, "d_x");
  CheckRows(op.d_dt_raw, op.x, heads, "d_dt_raw");
  CheckSteps(op.d_dt, op.dt_raw, "d_dt");
  Scratch scratch(op.scratch);
  double* const sums = reinterpret_cast<double*>(scratch.Take(2 * (channels * (width + 1))));
  double* const dt_sums = reinterpret_cast<double*>(scratch.Take(2 * heads));
  std::fill_n(sums, channels * (width + 1), 0.0);
  ForChunks(channels, [&](int64_t c, int64_t n) { ChannelsGrad(op, c, n, sums + c, channels); });
  StepsGrad(op, dt_sums);

  const auto store = [](const TensorView& to, Update update, int64_t count, auto&& sum) {
    if (!to) return;
    const Row row = Flat(to, "a gradient of mamba_conv");
    ForChunks(count, [&](int64_t begin, int64_t n) {
      float values[kChunk];
      for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(sum(begin + i));
      StoreOrAdd(row, begin, n, values, update == Update::kAccumulate);
    });
  };
  store(op.d_weight, op.weight_update, channels * width,
        [&](int64_t i) { return sums[i % width * channels + i / width]; });
  store(op.d_bias, op.bias_update, channels, [&](int64_t c) { return sums[width * channels + c]; });
  store(op.d_dt_bias, op.dt_bias_update, heads, [&](int64_t h) { return dt_sums[h]; });
}

namespace {

// Zeros where a row is nobody's.
void ClearRow(Row row, int64_t columns) {
  const float zeros[kChunk] = {};
  ForChunks(columns, [&](int64_t c, int64_t n) { Store(row, c, n, zeros); });
}

void CheckRowsOp(const MambaConvRowsOp<TensorView>& op) {
  const int64_t rows = op.x.dim(0), channels = op.x.dim(1), heads = op.dt_raw.dim(1);
  CheckFloat(op.x, "x");
  CheckFloat(op.out, "out");
  CheckFloat(op.dt_raw, "dt_raw");
  CheckVector(op.bias, channels, "bias");
  CheckVector(op.dt_bias, heads, "dt_bias");
  MR_CHECK(op.weight.layout.rank == 2 && op.weight.dim(0) == channels &&
               op.weight.dim(1) <= kConvWidth && op.inputs.layout.contiguous() &&
               op.inputs.layout.rank == 3 && op.inputs.dtype() == op.x.dtype() &&
               op.inputs.dim(1) == op.weight.dim(1) && op.inputs.dim(2) == channels &&
               op.out.dim(0) == rows && op.out.dim(1) == channels && op.dt_raw.dim(0) == rows &&
               op.dt.dtype() == DType::kF32 && op.dt.layout.contiguous() &&
               op.dt.numel() == rows * heads && op.at.numel() == rows && op.slots.numel() == rows,
           "mamba_conv_rows: x is {}, out {}, weight {}, inputs {}", ToString(op.x.layout),
           ToString(op.out.layout), ToString(op.weight.layout), ToString(op.inputs.layout));
}

}  // namespace

void MambaConvRows(const MambaConvRowsOp<TensorView>& op, Stream&) {
  CheckRowsOp(op);
  const int64_t rows = op.x.dim(0), width = op.weight.dim(1), heads = op.dt_raw.dim(1);
  const int32_t* const at = op.at.as<int32_t>();
  const int32_t* const slots = op.slots.as<int32_t>();
  for (int64_t r = 0; r < rows; ++r) {
    MR_CHECK(slots[r] < op.inputs.dim(0) && at[r] >= 0, "mamba_conv_rows: position {}, slot {}",
             at[r], slots[r]);
    if (slots[r] >= 0) continue;
    ClearRow(RowAt(op.out, r), op.x.dim(1));
    std::fill_n(op.dt.as<float>() + r * heads, heads, 0.0f);
  }
  ForChunks(op.x.dim(1), [&](int64_t c, int64_t n) {
    Taps taps;
    Ring ring;
    float bias_buffer[kChunk], u[kChunk];
    LoadTaps(op.weight, c, n, taps);
    const float* bias = Load(AsRow(op.bias), c, n, bias_buffer);
    for (int64_t r = 0; r < rows; ++r) {
      if (slots[r] < 0) continue;
      const int64_t t = at[r];
      const auto input = [&](int64_t position) {
        return RowAt(op.inputs, slots[r], position % width);
      };
      CopyRow(RowAt(op.x, r), c, n, ring[t % width]);
      Store(input(t), c, n, ring[t % width]);
      for (int64_t source = std::max<int64_t>(0, t - (width - 1)); source < t; ++source)
        CopyRow(input(source), c, n, ring[source % width]);
      Convolve(taps, ring, bias, width, 0, t, n, u);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) u[i] *= Sigmoid(u[i]);
      Store(RowAt(op.out, r), c, n, u);
    }
  });
  for (int64_t r = 0; r < rows; ++r)
    if (slots[r] >= 0) StepsOfRow(op, RowAt(op.dt_raw, r), heads, op.dt.as<float>() + r * heads);
}

}  // namespace millrace::cpu
