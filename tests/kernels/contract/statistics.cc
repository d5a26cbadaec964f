#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void FiniteScanContract(const Subject& subject) {
  Random random(80);
  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    const int64_t n = repeat % 4 == 0 ? Pick(random, 500, 1600) : PickSize(random);
    FiniteScanOp<TensorView> op{};
    const DType dtype = PickFloat(random);
    op.x = memory.NewRandom(random, dtype, {n}, Strides::kDense, dtype == DType::kF16 ? 6e4 : 1e38);
    double bad = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (Pick(random, 0, 5) != 0) continue;
      constexpr double kBad[] = {kInfinity, -kInfinity, kNan};
      Set(op.x, {i}, kBad[i % 3]);
      ++bad;
    }
    op.update = PickUpdate(random);
    op.unit = 3;
    op.inject_index = Pick(random, 0, n - 1);
    op.bad_count = memory.New(DType::kF64, {1});
    Set(op.bad_count, {}, 5);
    StepScalars scalars = MakeScalars();
    scalars.inject_grad_unit = repeat % 3 == 0   ? 3
                               : repeat % 3 == 1 ? 2
                                                 : -1;  // this unit, another, none
    op.scalars = memory.NewScalars(scalars);
    if (repeat % 2 == 1) {
      // Half of these have nothing bad to begin with.
      if (repeat % 4 == 1) {
        FillRandom(random, op.x, dtype == DType::kF16 ? 6e4 : 1e38);
        bad = 0;
      }
      op.squares = memory.New(DType::kF64, {1});
    }
    const TensorView before = memory.Clone(op.x);
    Run(subject, memory, subject.table.finite_scan, op);
    if (op.squares) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += Get(op.x, i) * Get(op.x, i);
      const auto terms = static_cast<double>(n);
      if (std::isfinite(sum))
        CheckNear(op.squares, {{sum, terms * 0x1p-52 * sum}}, "sum of squares");
      else
        CHECK(!std::isfinite(Get(op.squares)));
    }
    if (scalars.inject_grad_unit == op.unit) {
      CHECK(std::isnan(Get(op.x, op.inject_index)));
      bad += std::isfinite(Get(before, op.inject_index)) ? 1 : 0;
      Set(op.x, {op.inject_index}, 0);
      Set(before, {op.inject_index}, 0);
    }
    CHECK(SameBits(op.x, before));
    CHECK(Get(op.bad_count) == bad + (op.update == Update::kAccumulate ? 5 : 0));
  }
}

void SumSquaresContract(const Subject& subject) {
  Random random(81);
  for (int repeat = 0; repeat < 30; ++repeat) {
    Memory memory;
    const int64_t n = repeat == 0       ? 0
                      : repeat % 4 == 0 ? Pick(random, 500, 9000)
                                        : PickSize(random);
    SumSquaresOp<TensorView> op{};
    op.x = memory.NewRandom(random, PickFloat(random), {n});
    op.out = memory.New(DType::kF64, {1});
    long double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += static_cast<long double>(Get(op.x, i)) * Get(op.x, i);
    Run(subject, memory, subject.table.sum_squares, op);
    const auto value = static_cast<double>(sum);
    CheckNear(op.out, {{value, static_cast<double>(n) * 0x1p-53 * value}}, "sum of squares");
  }
}

namespace {

// Rows [world, 2U + L] with finite, distinct contributions: sum of squares 100*rank + unit + 1, no
// bad element, losses 10 + rank, 20 + rank, ...
struct StatsCase {
  LossWeights losses;
  int64_t world = 4, units = 3, shard_world = 2;
  double clip = 0;
  LossScaling scaling;
  std::vector<float> overflow;  // empty: nothing can overflow
  std::vector<double> rows;
  StepScalars scalars = MakeScalars();

  StatsCase() { Reset(); }
  void Reset() {
    rows.clear();
    for (int64_t r = 0; r < world; ++r) {
      for (int64_t u = 0; u < units; ++u) rows.push_back(static_cast<double>(100 * r + u + 1));
      for (int64_t u = 0; u < units; ++u) rows.push_back(0);
      for (int64_t l = 0; l < losses.count; ++l)
        rows.push_back(static_cast<double>(10 * (l + 1) + r));
    }
  }
  int64_t width() const { return 2 * units + losses.count; }
  double& squares(int64_t rank, int64_t unit) { return rows[rank * width() + unit]; }
  double& bad(int64_t rank, int64_t unit) { return rows[rank * width() + units + unit]; }
  double& loss(int64_t rank, int64_t l = 0) { return rows[rank * width() + 2 * units + l]; }

  StepScalars Result(const Subject& subject) const {
    Memory memory;
    StepStatsOp<TensorView> op{};
    op.rows = memory.New(DType::kF64, {world, width()});
    for (size_t i = 0; i < rows.size(); ++i) op.rows.as<double>()[i] = rows[i];
    if (!overflow.empty())
      op.overflow = memory.New(DType::kF32, {static_cast<int64_t>(overflow.size())});
    for (size_t i = 0; i < overflow.size(); ++i) op.overflow.as<float>()[i] = overflow[i];
    op.scalars = memory.NewScalars(scalars);
    op.units = units;
    op.losses = losses;
    op.shard_world = shard_world;
    op.clip = clip;
    op.scaling = scaling;
    Run(subject, memory, subject.table.step_stats, op);
    return ScalarsOf(op.scalars);
  }
};

void CheckSkipped(const StatsCase& c, const Subject& subject, int64_t unit, int64_t rank) {
  const StepScalars got = c.Result(subject);
  CHECK(got.applied == 0);
  CHECK(got.offender_unit == unit);
  CHECK(got.offender_rank == rank);
  CHECK(got.adam_t == c.scalars.adam_t);
  CHECK(got.skipped == c.scalars.skipped + 1);
}

void CheckUntouched(const StepScalars& got, const StepScalars& before) {
  CHECK(got.step == before.step);
  CHECK(got.inv_valid_tokens == before.inv_valid_tokens);
  CHECK(got.token_parity == before.token_parity);
  CHECK(got.lr == before.lr);
  CHECK(got.inject_grad_unit == before.inject_grad_unit);
  CHECK(got.max_loss == before.max_loss);
}

}  // namespace

void StepStatsContract(const Subject& subject) {
  StatsCase c;
  c.scalars.adam_t = 6;
  c.scalars.skipped = 2;
  c.scalars.step = 9;
  const double norm = std::sqrt(1 + 2 + 3 + 101 + 102 + 103.0);  // replica 0 only: ranks 0 and 1
  SECTION("several losses: each its own column, added by weight") {
    c.losses = {.count = 3, .weight = {1, 0.5, 0.25}};
    c.Reset();
    CHECK(c.Result(subject).loss == (46 + 0.5 * (20 + 21 + 22 + 23) + 0.25 * (30 + 31 + 32 + 33)) *
                                        c.scalars.inv_valid_tokens);
    CHECK(c.Result(subject).grad_norm == norm);
    c.loss(2, 1) = std::numeric_limits<double>::infinity();
    CheckSkipped(c, subject, -1, 2);
  }
  SECTION("finite: loss, norm, counters") {
    const StepScalars got = c.Result(subject);
    CHECK(got.loss == (10 + 11 + 12 + 13) * c.scalars.inv_valid_tokens);
    CHECK(got.grad_norm == norm);
    CHECK(got.clip_scale == 1);
    CHECK(got.applied == 1);
    CHECK(got.offender_unit == -2);
    CHECK(got.offender_rank == -1);
    CHECK(got.adam_t == 7);
    CHECK(got.skipped == 2);
    CheckUntouched(got, c.scalars);
  }
  SECTION("clipping") {
    c.clip = norm / 4;
    CHECK(c.Result(subject).clip_scale == c.clip / norm);
    c.clip = norm * 2;
    CHECK(c.Result(subject).clip_scale == 1);
    c.clip = -1;
    CHECK(c.Result(subject).clip_scale == 1);
  }
  SECTION("a gradient of zeros") {
    for (int64_t r = 0; r < 2; ++r)
      for (int64_t u = 0; u < 3; ++u) c.squares(r, u) = 0;
    c.clip = 1;
    const StepScalars got = c.Result(subject);
    CHECK(got.grad_norm == 0);
    CHECK(got.clip_scale == 1);
    CHECK(got.applied == 1);
  }
  SECTION("bad elements: the lowest unit, then the lowest rank, of any replica") {
    c.bad(3, 2) = 1;
    CheckSkipped(c, subject, 2, 3);
    c.bad(1, 2) = 7;
    CheckSkipped(c, subject, 2, 1);
    c.bad(3, 0) = 1;
    CheckSkipped(c, subject, 0, 3);
  }
  SECTION("a count that is itself NaN") {
    c.bad(2, 1) = kNan;
    CheckSkipped(c, subject, 1, 2);
  }
  SECTION("a bad loss comes before any gradient, from the lowest rank") {
    c.bad(0, 0) = 1;
    c.loss(3) = kNan;
    CheckSkipped(c, subject, -1, 3);
    c.loss(1) = kInfinity;
    CheckSkipped(c, subject, -1, 1);
  }
  SECTION("a norm that overflowed on the way: nobody's own contribution") {
    c.squares(1, 1) = kInfinity;
    CheckSkipped(c, subject, -2, -1);
    c.Reset();
    c.squares(3, 1) = kNan;  // replica 1 does not enter the norm
    CHECK(c.Result(subject).applied == 1);
  }
  SECTION("a loss that is finite on each rank but not as a sum") {
    c.loss(0) = c.loss(1) = std::numeric_limits<double>::max();
    c.scalars.inv_valid_tokens = 1;
    CheckSkipped(c, subject, -2, -1);
  }
  SECTION(
      "a loss above max_loss is a spike: no update, nobody's fault; at it, or with 0, it is none") {
    const double loss = (10 + 11 + 12 + 13) * c.scalars.inv_valid_tokens;
    c.clip = norm / 4;
    c.scalars.max_loss = std::nextafter(loss, 0);
    CheckSkipped(c, subject, -3, -1);
    const StepScalars got = c.Result(subject);
    CHECK(got.loss == loss);
    CHECK(got.grad_norm == norm);
    CHECK(got.clip_scale == 1);
    CheckUntouched(got, c.scalars);
    for (const double max_loss : {0.0, loss}) {
      c.scalars.max_loss = max_loss;
      CHECK(c.Result(subject).applied == 1);
      CHECK(c.Result(subject).offender_unit == -2);
    }
    // A value that is not finite is named, whatever the limit.
    c.scalars.max_loss = loss / 2;
    c.bad(1, 2) = 7;
    CheckSkipped(c, subject, 2, 1);
  }
  SECTION("rows without room: the first block, whatever else is wrong; no update") {
    c.clip = norm / 4;
    c.overflow = {0, 0, 0};
    CHECK(c.Result(subject).applied == 1);
    CHECK(c.Result(subject).offender_unit == -2);
    c.overflow = {0, 0x1p24F, 1};
    CheckSkipped(c, subject, -5, -1);
    CHECK(c.Result(subject).clip_scale == 1);
    CHECK(c.Result(subject).grad_norm == norm);
    CheckUntouched(c.Result(subject), c.scalars);
    c.overflow = {0, 0, 1};
    c.loss(2) = kNan;
    c.bad(1, 2) = 7;
    CheckSkipped(c, subject, -6, -1);
    c.overflow = {0, 0, 0};
    CheckSkipped(c, subject, -1, 2);
  }
  SECTION("scaled gradients: the norm and what clips are of those that are not") {
    c.scalars.loss_scale = 1024;
    c.scaling = {.init_scale = 65536};
    CHECK(c.Result(subject).grad_norm == norm / 1024);
    CHECK(c.Result(subject).clip_scale == 0x1p-10);
    c.clip = norm / 4096;
    CHECK(c.Result(subject).clip_scale == 0.25 / 1024);
    CHECK(c.Result(subject).loss == (10 + 11 + 12 + 13) * c.scalars.inv_valid_tokens);
  }
  SECTION("a scale grows after growth_interval updates, up to the most") {
    c.scaling = {.init_scale = 65536, .growth_factor = 4, .growth_interval = 3};
    c.scalars.loss_scale = 1024;
    c.scalars.next_loss_scale = 7;  // it is written
    c.scalars.clean_steps = 1;
    CHECK(c.Result(subject).next_loss_scale == 1024);
    CHECK(c.Result(subject).clean_steps == 2);
    CHECK(c.Result(subject).loss_scale == 1024);
    c.scalars.clean_steps = 2;
    CHECK(c.Result(subject).next_loss_scale == 4096);
    CHECK(c.Result(subject).clean_steps == 0);
    CHECK(c.Result(subject).scaled_down == 0);
    c.scalars.loss_scale = 0x1p62F;
    CHECK(c.Result(subject).next_loss_scale == 0x1p64F);
    c.scalars.loss_scale = 0x1p63F;
    CHECK(c.Result(subject).next_loss_scale == 0x1p63F);
    CHECK(c.Result(subject).clean_steps == 0);
  }
  SECTION("gradients that are not finite scale down, named as ever, but not below the least") {
    c.scaling = {.init_scale = 65536, .backoff_factor = 0.25};
    c.scalars.loss_scale = 8;
    c.scalars.clean_steps = 5;
    c.scalars.scale_downs = 2;
    c.bad(1, 2) = 7;
    CheckSkipped(c, subject, 2, 1);
    CHECK(c.Result(subject).scaled_down == 1);
    CHECK(c.Result(subject).next_loss_scale == 2);
    CHECK(c.Result(subject).clean_steps == 0);
    CHECK(c.Result(subject).scale_downs == 3);
    c.scalars.loss_scale = 2;
    CheckSkipped(c, subject, 2, 1);
    CHECK(c.Result(subject).scaled_down == 0);
    CHECK(c.Result(subject).next_loss_scale == 2);
    CHECK(c.Result(subject).clean_steps == 5);
    CHECK(c.Result(subject).scale_downs == 2);
    c.Reset();
    c.scalars.loss_scale = 8;
    c.squares(1, 1) = kInfinity;  // a sum over ranks
    CheckSkipped(c, subject, -2, -1);
    CHECK(c.Result(subject).scaled_down == 1);
  }
  SECTION("a loss that is not finite, a spike, and rows without room leave the scale") {
    c.scaling = {.init_scale = 65536};
    c.scalars.loss_scale = 8;
    c.scalars.clean_steps = 5;
    const auto stays = [&] {
      const StepScalars got = c.Result(subject);
      CHECK(got.applied == 0);
      CHECK(got.scaled_down == 0);
      CHECK(got.next_loss_scale == 8);
      CHECK(got.clean_steps == 5);
      CHECK(got.scale_downs == 0);
    };
    c.bad(1, 2) = 7;
    c.loss(1) = kNan;
    stays();
    c.Reset();
    c.scalars.max_loss = 1e-3;
    stays();
    c.scalars.max_loss = 0;
    c.overflow = {1};
    c.bad(1, 2) = 7;
    stays();
  }
  SECTION("without scaling no such state is touched") {
    c.scalars.next_loss_scale = 8;
    c.scalars.clean_steps = 5;
    c.bad(1, 2) = 7;
    const StepScalars got = c.Result(subject);
    CHECK(got.next_loss_scale == 8);
    CHECK(got.clean_steps == 5);
    CHECK(got.scale_downs == 0);
  }
  SECTION("one rank, no units") {
    c.world = 1, c.units = 0, c.shard_world = 1;
    c.Reset();
    const StepScalars got = c.Result(subject);
    CHECK(got.loss == 10 * c.scalars.inv_valid_tokens);
    CHECK(got.grad_norm == 0);
    CHECK(got.applied == 1);
  }
}

}  // namespace millrace::test
