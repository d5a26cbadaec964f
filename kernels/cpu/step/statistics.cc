#include "kernels/cpu/step/statistics.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/rows.h"
#include "runtime/base/step_scalars.h"

namespace millrace::cpu {
namespace {

// Values whose exponent bits are all ones.
template <class T>
int64_t CountNonFinite(const T* x, int64_t n, T exponent) {
  int64_t count = 0;
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    const int64_t end = std::min(n, begin + kChunk);
    T part = 0;  // fits: at most kChunk
#pragma omp simd reduction(+ : part)
    for (int64_t i = begin; i < end; ++i)
      part = static_cast<T>(part + ((x[i] & exponent) == exponent));
    count += part;
  }
  return count;
}

using Doubles = double __attribute__((vector_size(32)));

Doubles LoadDoubles(const float* x) { return Doubles{x[0], x[1], x[2], x[3]}; }

// Sixteen lanes in double, added in a fixed order.
double SumSquaresOf(const float* x, int64_t n) {
  Doubles a = {}, b = {}, c = {}, d = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const Doubles p = LoadDoubles(x + i), q = LoadDoubles(x + i + 4), r = LoadDoubles(x + i + 8),
                  s = LoadDoubles(x + i + 12);
    a += p * p;
    b += q * q;
    c += r * r;
    d += s * s;
  }
  double tail = 0;
  for (; i < n; ++i) tail += static_cast<double>(x[i]) * x[i];
  const Doubles sum = (a + b) + (c + d);
  return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + tail;
}

// Where the first non-finite value came from: the lowest rank with a bad loss, else the lowest
// (unit, rank) with bad elements.
struct Offender {
  int64_t unit = kOffenderNone, rank = -1;
};

Offender FindOffender(const double* rows, int64_t world, int64_t units, int64_t losses) {
  const StatsRow row(units, losses);
  for (int64_t rank = 0; rank < world; ++rank)
    for (int64_t l = 0; l < losses; ++l)
      if (!std::isfinite(rows[rank * row.width + row.losses + l])) return {kOffenderLoss, rank};
  for (int64_t unit = 0; unit < units; ++unit)
    for (int64_t rank = 0; rank < world; ++rank)
      if (!(rows[rank * row.width + row.bad_counts + unit] == 0)) return {unit, rank};
  return {};
}

// The first block whose count is not 0; -1: none, or nothing can overflow.
int64_t FirstOverflow(const TensorView& counts) {
  if (counts.data == nullptr) return -1;
  MR_CHECK(counts.dtype() == DType::kF32 && counts.layout.contiguous(),
           "step_stats: overflow is {}", ToString(counts.layout));
  for (int64_t i = 0; i < counts.numel(); ++i)
    if (!(counts.as<float>()[i] == 0)) return i;
  return -1;
}

// What the step leaves to the next one.
void ScaleNext(const LossScaling& scaling, bool loss_is_finite, StepScalars& s) {
  const double down = s.loss_scale * scaling.backoff_factor,
               up = s.loss_scale * scaling.growth_factor;
  s.next_loss_scale = s.loss_scale;
  s.scaled_down = s.applied == 0 && loss_is_finite && down >= kLeastLossScale ? 1 : 0;
  if (s.scaled_down != 0) {
    s.next_loss_scale = static_cast<float>(down);
    s.scale_downs += 1;
    s.clean_steps = 0;
  } else if (s.applied != 0) {
    s.clean_steps += 1;
    if (s.clean_steps < scaling.growth_interval) return;
    if (up <= kMostLossScale) s.next_loss_scale = static_cast<float>(up);
    s.clean_steps = 0;
  }
}

}  // namespace

void FiniteScan(const FiniteScanOp<TensorView>& op, Stream& stream) {
  CheckFloat(op.x, "x");
  const Row x = Flat(op.x, "x");
  const int64_t n = op.x.numel();
  if (op.scalars.as<StepScalars>()->inject_grad_unit == op.unit && n > 0) {
    MR_CHECK(op.inject_index >= 0 && op.inject_index < n, "finite_scan: inject_index {} of {}",
             op.inject_index, n);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    Store(x, op.inject_index, 1, &nan);
  }
  const int64_t bad =
      x.dtype == DType::kF32
          ? CountNonFinite<uint32_t>(reinterpret_cast<const uint32_t*>(x.data), n, 0x7f800000u)
          : CountNonFinite<uint16_t>(reinterpret_cast<const uint16_t*>(x.data), n,
                                     x.dtype == DType::kF16 ? 0x7c00u : 0x7f80u);
  double& count = *op.bad_count.as<double>();
  count = (op.update == Update::kAccumulate ? count : 0.0) + static_cast<double>(bad);
  if (op.squares) SumSquares({{}, op.x, op.squares, {}}, stream);
}

void SumSquares(const SumSquaresOp<TensorView>& op, Stream&) {
  CheckFloat(op.x, "x");
  const Row x = Flat(op.x, "x");
  double sum = 0;
  ForChunks(op.x.numel(), [&](int64_t c, int64_t n) {
    float buffer[kChunk];
    sum += SumSquaresOf(Load(x, c, n, buffer), n);
  });
  *op.out.as<double>() = sum;
}

void StepStats(const StepStatsOp<TensorView>& op, Stream&) {
  const int64_t world = op.rows.dim(0), units = op.units, losses = op.losses.count;
  const StatsRow row(units, losses);
  MR_CHECK(
      op.rows.dtype() == DType::kF64 && op.rows.dim(1) == row.width && op.rows.layout.contiguous(),
      "step_stats: rows are {} for {} units and {} losses", ToString(op.rows.layout), units,
      losses);
  MR_CHECK(op.shard_world >= 1 && op.shard_world <= world, "step_stats: shard world {} of {}",
           op.shard_world, world);
  const double* const rows = op.rows.as<double>();
  StepScalars& s = *op.scalars.as<StepScalars>();

  double loss_sum = 0, squares = 0;
  for (int64_t l = 0; l < losses; ++l) {
    double of_all = 0;
    for (int64_t rank = 0; rank < world; ++rank) of_all += rows[rank * row.width + row.losses + l];
    loss_sum += op.losses.weight[l] * of_all;
  }
  bool bad = false;
  for (int64_t rank = 0; rank < world; ++rank) {
    const double* const own = rows + rank * row.width;
    for (int64_t u = 0; u < units; ++u) {
      if (rank < op.shard_world) squares += own[row.sum_squares + u];
      bad |= !(own[row.bad_counts + u] == 0);
    }
  }
  s.loss = loss_sum * s.inv_valid_tokens;
  s.grad_norm = std::sqrt(squares) / s.loss_scale;
  const int64_t overflown = FirstOverflow(op.overflow);
  const bool finite = std::isfinite(s.loss) && !bad && std::isfinite(s.grad_norm);
  const bool spike = finite && s.max_loss > 0 && s.loss > s.max_loss;
  const bool applied = finite && !spike && overflown < 0;
  s.applied = applied ? 1 : 0;
  const double clip = applied && op.clip > 0 && s.grad_norm > op.clip ? op.clip / s.grad_norm : 1.0;
  s.clip_scale = clip / s.loss_scale;
  const Offender offender = overflown >= 0 ? Offender{kOffenderOverflow - overflown, -1}
                            : spike        ? Offender{kOffenderSpike, -1}
                            : finite       ? Offender{}
                                           : FindOffender(rows, world, units, losses);
  s.offender_unit = offender.unit;
  s.offender_rank = static_cast<int32_t>(offender.rank);
  (applied ? s.adam_t : s.skipped) += 1;
  if (op.scaling.init_scale > 0)
    ScaleNext(op.scaling, std::isfinite(s.loss) && !spike && overflown < 0, s);
}

}  // namespace millrace::cpu
