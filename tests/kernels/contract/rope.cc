#include <catch2/catch.hpp>
#include <cmath>
#include <complex>
#include <numbers>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

// Llama 3.1's rule, written by bands of wavelength.
double FrequencyOf(int64_t i, int64_t head_dim, double theta, const RopeScaling& s) {
  const double frequency =
      std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
  if (s.factor == 1) return frequency;
  const double turns =
      static_cast<double>(s.original_max_position_embeddings) * frequency / (2 * std::numbers::pi);
  if (turns <= s.low_freq_factor) return frequency / s.factor;
  if (turns >= s.high_freq_factor) return frequency;
  const double kept = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return frequency * (kept + (1 - kept) / s.factor);
}

}  // namespace

void RopeContract(const Subject& subject) {
  Random random(50), document_random(51);
  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    const int64_t batch = Pick(random, 0, 3), length = Pick(random, 1, 20),
                  heads = Pick(random, 1, 3);
    const int64_t half = repeat == 0 ? 64 : Pick(random, 1, 17);
    RopeTableOp<TensorView> make{};
    make.table = memory.New(DType::kF32, {length, half, 2});
    make.theta = Flip(random) ? 10000 : 500000;
    if (Flip(random)) make.scaling = {8, 1, 4, 64};
    Run(subject, memory, subject.table.rope_table, make);
    Reference table;
    ForEach(make.table.layout, [&](const Index& i) {
      const double angle =
          static_cast<double>(i[0]) * FrequencyOf(i[1], 2 * half, make.theta, make.scaling);
      // The double angle itself is within a few units of 2^-52 * angle.
      table.push_back({i[2] == 0 ? std::cos(angle) : std::sin(angle), 8 * 0x1p-52 * (angle + 1)});
    });
    CheckNear(make.table, table, "rope table");

    // x is a slice of a wider row.
    const TensorView row =
        memory.NewRandom(random, PickFloat(random), {batch, length, heads * 2 * half + 4});
    RopeOp<TensorView> op{};
    op.table = make.table;
    op.x = row;
    op.x.data += 3 * Bytes(row.dtype());
    op.x.layout = DenseLayout(row.dtype(), {batch, length, heads, 2 * half});
    op.x.layout.strides = {row.stride(0), row.stride(1), 2 * half, 1};
    op.direction = Flip(random) ? RopeDirection::kForward : RopeDirection::kInverse;
    if (Flip(document_random)) {
      op.documents = memory.New(DType::kI32, {batch, length});
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t t = 0, begin = 0; t < length; ++t) {
          if (Pick(document_random, 0, 3) == 0) begin = t;
          op.documents.as<int32_t>()[b * length + t] = static_cast<int32_t>(begin);
        }
    }
    const auto position = [&](int64_t b, int64_t t) {
      return op.documents ? t - op.documents.as<int32_t>()[b * length + t] : t;
    };
    Reference rotated;
    ForEach(op.x.layout, [&](const Index& i) {
      const int64_t pair = i[3] % half;
      const std::complex<double> x{Get(op.x, i[0], i[1], i[2], pair),
                                   Get(op.x, i[0], i[1], i[2], pair + half)};
      const int64_t at = position(i[0], i[1]);
      std::complex<double> turn{Get(op.table, at, pair, 0), Get(op.table, at, pair, 1)};
      if (op.direction == RopeDirection::kInverse) turn = std::conj(turn);
      const std::complex<double> y = x * turn;
      rotated.push_back({i[3] < half ? y.real() : y.imag(), 3 * kU * std::abs(x) * std::abs(turn)});
    });
    Run(subject, memory, subject.table.rope, op);
    CheckNear(op.x, rotated, "rotated");
  }
}

}  // namespace millrace::test
