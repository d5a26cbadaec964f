#include "kernels/cpu/attention/rope.h"

#include <cmath>
#include <numbers>
#include <optional>

#include "kernels/cpu/documents.h"
#include "kernels/cpu/rows.h"

namespace millrace::cpu {
namespace {

// Frequencies whose wavelength the original context does not cover are divided by `factor`, those
// well inside stay, and those between are blended (Llama 3.1; HF modeling_rope_utils).
double Scaled(double frequency, const RopeScaling& s) {
  if (s.factor == 1) return frequency;
  const double context = static_cast<double>(s.original_max_position_embeddings);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength > context / s.low_freq_factor) return frequency / s.factor;
  if (wavelength < context / s.high_freq_factor) return frequency;
  const double blend =
      (context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - blend) * frequency / s.factor + blend * frequency;
}

// Chunk [c, c + n) of the half pairs of the angles of one position.
struct Angles {
  Angles(const TensorView& table, int64_t t, int64_t chunk, int64_t count, float sign)
      : c(chunk), n(count) {
    const float* entry = table.as<float>() + (t * table.dim(1) + c) * 2;
    for (int64_t i = 0; i < n; ++i) {
      cosine[i] = entry[2 * i];
      sine[i] = sign * entry[2 * i + 1];
    }
  }
  int64_t c, n;
  float cosine[kChunk], sine[kChunk];
};

// The pairs (c + i, half + c + i) of a head.
void Rotate(Row row, int64_t half, const Angles& angles) {
  const int64_t c = angles.c, n = angles.n;
  float low_buffer[kChunk], high_buffer[kChunk];
  const float* low = Load(row, c, n, low_buffer);
  const float* high = Load(row, half + c, n, high_buffer);
  float* new_low = Target(row, c, low_buffer);
  float* new_high = Target(row, half + c, high_buffer);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float a = low[i], b = high[i];
    new_low[i] = a * angles.cosine[i] - b * angles.sine[i];
    new_high[i] = b * angles.cosine[i] + a * angles.sine[i];
  }
  Store(row, c, n, new_low);
  Store(row, half + c, n, new_high);
}

void CheckTable(const TensorView& table, const TensorView& x, int64_t depth) {
  CheckFloat(x, "x");
  MR_CHECK(depth % 2 == 0, "rope: x is {}; the head dimension must be even", ToString(x.layout));
  MR_CHECK(table.dim(1) == depth / 2 && table.layout.contiguous(), "rope: table is {}, x is {}",
           ToString(table.layout), ToString(x.layout));
}

}  // namespace

void RopeTable(const RopeTableOp<TensorView>& op, Stream&) {
  const TensorView& table = op.table;
  MR_CHECK(table.dtype() == DType::kF32 && table.layout.rank == 3 && table.dim(2) == 2 &&
               table.layout.contiguous(),
           "rope table is {}; dense f32[T, D/2, 2] is expected", ToString(table.layout));
  const int64_t half = table.dim(1);
  const std::array<int64_t, 2> starts = ChunkStarts(op.rows, table.dim(0));
  for (int64_t i = 0; i < half; ++i) {
    const double exponent = -static_cast<double>(i) / static_cast<double>(half);
    const double frequency = Scaled(std::pow(op.theta, exponent), op.scaling);
    for (int64_t t = 0; t < table.dim(0); ++t) {
      const int64_t position = PositionOf(starts, op.rows.ranks, table.dim(0), t);
      const double angle = static_cast<double>(position) * frequency;
      float* const entry = table.as<float>() + (t * half + i) * 2;
      entry[0] = static_cast<float>(std::cos(angle));
      entry[1] = static_cast<float>(std::sin(angle));
    }
  }
}

void Rope(const RopeOp<TensorView>& op, Stream&) {
  const TensorView& x = op.x;
  MR_CHECK_EQ(x.layout.rank, 4, "rope: rank of x");
  CheckTable(op.table, x, x.dim(3));
  MR_CHECK_LE(x.dim(1), op.table.dim(0), "rope: positions of x, of the table");
  const int64_t half = x.dim(3) / 2;
  const float sign = op.direction == RopeDirection::kForward ? 1.0f : -1.0f;
  const Documents documents(op.documents, x.dim(0), x.dim(1));
  for (int64_t t = 0; t < x.dim(1); ++t) {
    ForChunks(half, [&](int64_t c, int64_t n) {
      std::optional<Angles> angles;
      int64_t loaded = -1;  // position
      for (int64_t b = 0; b < x.dim(0); ++b) {
        if (const int64_t position = t - documents.FirstOf(b, t); position != loaded) {
          angles.emplace(op.table, position, c, n, sign);
          loaded = position;
        }
        for (int64_t h = 0; h < x.dim(2); ++h) Rotate(RowAt(x, b, t, h), half, *angles);
      }
    });
  }
}

void RopeRows(const RopeRowsOp<TensorView>& op, Stream&) {
  const TensorView& x = op.x;
  MR_CHECK_EQ(x.layout.rank, 3, "rope_rows: rank of x");
  CheckTable(op.table, x, x.dim(2));
  const int64_t half = x.dim(2) / 2;
  for (int64_t r = 0; r < x.dim(0); ++r) {
    const int64_t t = op.at.as<int32_t>()[r];
    MR_CHECK(t >= 0 && t < op.table.dim(0), "rope_rows: position {} of {}", t, op.table.dim(0));
    ForChunks(half, [&](int64_t c, int64_t n) {
      const Angles angles(op.table, t, c, n, 1.0f);
      for (int64_t h = 0; h < x.dim(1); ++h) Rotate(RowAt(x, r, h), half, angles);
    });
  }
}

}  // namespace millrace::cpu
