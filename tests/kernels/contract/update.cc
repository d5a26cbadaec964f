#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <tuple>

#include "kernels/ops/rounding.h"
#include "tests/kernels/contract/contract.h"
#include "tests/kernels/contract/update_segments.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {

void BeginStepContract(const Subject& subject) {
  LearningRate schedule{ScheduleKind::kCosine, 1e-2, 1e-3, 10, 100, 1000};
  for (const int64_t step : {0, 9, 10, 60, 110, 2000}) {
    Memory memory;
    StepScalars scalars = MakeScalars();
    scalars.step = step;
    BeginStepOp<TensorView> op{{schedule}, memory.NewScalars(scalars)};
    Run(subject, memory, subject.table.begin_step, op);
    const double share = std::min(1.0, static_cast<double>(step - 10) / 100);
    const double expected = step < 10
                                ? 1e-2 * static_cast<double>(step + 1) / 10
                                : 1e-3 + 9e-3 * std::pow(std::cos(share * std::numbers::pi / 2), 2);
    CHECK(ScalarsOf(op.scalars).lr == Approx(expected).epsilon(1e-14));
    CHECK(ScalarsOf(op.scalars).step == step);
    CHECK(ScalarsOf(op.scalars).clip_scale == scalars.clip_scale);
    CHECK(ScalarsOf(op.scalars).loss_scale == 1);
  }
  // Of a step: what the one before has left, else the first scale; without scaling always 1.
  for (const auto& [first, left, expected] :
       {std::tuple{65536.0, 0.0f, 65536.0f}, {65536.0, 2048.0f, 2048.0f}, {0.0, 2048.0f, 1.0f}}) {
    Memory memory;
    StepScalars scalars = MakeScalars();
    scalars.loss_scale = 32;
    scalars.next_loss_scale = left;
    BeginStepOp<TensorView> op{{schedule, {.init_scale = first}}, memory.NewScalars(scalars)};
    Run(subject, memory, subject.table.begin_step, op);
    CHECK(ScalarsOf(op.scalars).loss_scale == expected);
    CHECK(ScalarsOf(op.scalars).next_loss_scale == left);
  }
}

namespace {

struct AfterStep {
  Reference master, m, v;
};

bool Decays(const AdamWOp<TensorView>& op, int64_t i) {
  for (const Range& range : *op.decay)
    if (range.begin <= op.flat_begin.value() + i && op.flat_begin.value() + i < range.end)
      return true;
  return false;
}

// What element i is updated by.
UpdateSegment ConstantsAt(const AdamWOp<TensorView>& op, int64_t i) {
  if (op.segments) return SegmentAt(op.segments, op.flat_begin.value(), i);
  return {.weight_decay = Decays(op, i) ? op.weight_decay : 0,
          .beta1 = op.beta1,
          .beta2 = op.beta2,
          .eps = op.eps};
}

// m and v are sums of two terms; the step is m / sqrt(v), so it inherits their errors.
AfterStep ReferenceOf(const AdamWOp<TensorView>& op, const StepScalars& s) {
  AfterStep reference;
  const auto t = static_cast<double>(s.adam_t);
  for (int64_t i = 0; i < op.master.dim(0); ++i) {
    const UpdateSegment by = ConstantsAt(op, i);
    const double bias1 = 1 - std::pow(by.beta1, t), bias2 = 1 - std::pow(by.beta2, t);
    const double g = Get(op.grad, i) * s.clip_scale, w = Get(op.master, i);
    const double m = by.beta1 * Get(op.m, i) + (1 - by.beta1) * g;
    const double m_bound =
        4 * kU * (by.beta1 * std::abs(Get(op.m, i)) + (1 - by.beta1) * std::abs(g));
    const double v = by.beta2 * Get(op.v, i) + (1 - by.beta2) * g * g;
    const double denominator = std::sqrt(v / bias2) + by.eps, lr = s.lr * by.lr_scale;
    const double step = lr / bias1 / denominator;
    const double kept = w * (1 - lr * by.weight_decay);
    reference.m.push_back({m, m_bound});
    reference.v.push_back({v, 5 * kU * v});
    reference.master.push_back(
        {kept - step * m, step * m_bound + 12 * kU * std::abs(step * m) + 2 * kU * std::abs(kept)});
  }
  return reference;
}

AdamWOp<TensorView> MakeAdamW(Memory& memory, Random& random, const StepScalars& scalars,
                              int64_t n) {
  AdamWOp<TensorView> op{};
  op.master = memory.NewRandom(random, DType::kF32, {n});
  op.m = memory.NewRandom(random, DType::kF32, {n}, Strides::kDense, 0.1);
  op.v = memory.NewRandom(random, DType::kF32, {n}, Strides::kDense, 0.01);
  ForEach(op.v.layout, [&](const Index& i) { Set(op.v, i, std::abs(Get(op.v, i))); });
  op.grad = memory.NewRandom(random, PickFloat(random), {n});
  if (Flip(random)) op.compute = memory.New(FloatOf16Bits(), {n});
  op.scalars = memory.NewScalars(scalars);
  op.weight_decay = 0.1;
  op.flat_begin = Pick(random, 0, 2) * n;
  auto decay = std::make_shared<std::vector<Range>>();
  for (int64_t begin = Pick(random, 0, 20); begin < 3 * n;) {
    const int64_t end = begin + Pick(random, 1, n + 5);  // ranges may cross the border of a shard
    decay->push_back({begin, end});
    begin = end + Pick(random, 1, 30);
  }
  op.decay = decay;
  return op;
}

// The same with bf16 moments and runs that are a split parameter's; what decays is whole runs.
AdamWOp<TensorView> MakeNarrow(Memory& memory, Random& random, const StepScalars& scalars,
                               int64_t n, bool many) {
  AdamWOp<TensorView> op = MakeAdamW(memory, random, scalars, n);
  for (TensorView* view : {&op.m, &op.v}) {
    const TensorView narrow = memory.New(DType::kBF16, {n});
    ForEach(narrow.layout, [&](const Index& i) { Set(narrow, i, Get(*view, i[0])); });
    *view = narrow;
  }
  auto runs = std::make_shared<std::vector<LogicalRun>>();
  auto decay = std::make_shared<std::vector<Range>>();
  for (int64_t begin = Pick(random, 0, 9); begin < 3 * n;) {
    const int64_t end = begin + Pick(random, 1, many ? 7 : n + 40), length = Pick(random, 1, 90);
    runs->push_back({.begin = begin,
                     .end = end,
                     .length = length,
                     .stride = 2 * length,
                     .first = Pick(random, 0, 50),
                     .step = length,
                     .key = static_cast<uint64_t>(Pick(random, 1, 1 << 30))});
    if (Flip(random)) runs->back().inner = 2, runs->back().outer_step = 300 * length;
    if (Flip(random)) decay->push_back({begin, end});
    begin = end + Pick(random, 0, many ? 3 : 20);
  }
  op.runs = runs;
  op.decay = decay;
  op.place = Pick(random, 0, 3);
  return op;
}

// What the rounding of each element may be: of the moment's two neighbours in bf16 the one that its
// random bits say, wherever f32 arithmetic leaves no doubt of it.
void CheckRounded(const AdamWOp<TensorView>& op, const TensorView& moment,
                  const Reference& reference, int shift, int64_t t) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < moment.dim(0); ++i) {
    const int64_t at = op.flat_begin.value() + i;
    uint32_t word = 0;
    bool known = false;
    for (const LogicalRun& run : *op.runs)
      if (run.begin <= at && at < run.end) {
        const int64_t j = at - run.begin;  // of rows of `length`, `stride` apart
        const int64_t place = op.place.value(), inner = run.inner > 0 ? run.inner : place + 1;
        const int64_t logical = run.first + place / inner * run.outer_step +
                                place % inner * run.step + j / run.length * run.stride +
                                j % run.length;
        word = MomentWords(run.key, logical / 4, t)[static_cast<size_t>(logical % 4)];
        known = true;
      }
    if (!known) continue;  // a gap, which would hold zeros
    const auto& [value, bound] = reference[static_cast<size_t>(i)];
    const uint32_t bits = word >> shift & 0xffffu;
    const auto rounded = [&](double x) {
      return ToFloat(RoundStochastically(static_cast<float>(x), bits));
    };
    const auto got = static_cast<float>(Get(moment, i));
    wrong += got < rounded(value - bound - kU * std::abs(value)) ||
             got > rounded(value + bound + kU * std::abs(value));
  }
  CHECK(wrong == 0);
}

void CheckDowncast(const AdamWOp<TensorView>& op) {
  if (!op.compute) return;
  Memory memory;
  const TensorView expected = memory.New(op.compute.dtype(), {op.master.dim(0)});
  ForEach(expected.layout, [&](const Index& i) { Set(expected, i, Get(op.master, i)); });
  INFO("compute is the downcast of master");
  CHECK(SameBits(op.compute, expected));
}

// Gaps between runs hold zeros. A kernel that goes by runs need not know the segment of a gap.
void ZeroGaps(AdamWOp<TensorView>& op) {
  for (int64_t i = 0; i < op.master.dim(0); ++i) {
    const int64_t at = op.flat_begin.value() + i;
    if (std::any_of(op.runs->begin(), op.runs->end(),
                    [&](const LogicalRun& run) { return run.begin <= at && at < run.end; }))
      continue;
    for (const TensorView* view : {&op.master, &op.m, &op.v, &op.grad})
      std::fill_n(view->data + i * Bytes(view->dtype()), Bytes(view->dtype()), std::byte{0});
  }
}

}  // namespace

// Constants that differ by segment, with moments of both kinds; with a skipped step among them.
void AdamWSegmentsContract(const Subject& subject) {
  Random random(97);
  for (int repeat = 0; repeat < 60; ++repeat) {
    Memory memory;
    const bool many = repeat % 8 == 7;
    const int64_t n = repeat == 0 ? 0 : many ? 1900 : Pick(random, 1, 3000);
    StepScalars scalars = MakeScalars();
    scalars.adam_t = repeat % 5 == 0 ? 1 : Pick(random, 2, 5000);
    scalars.applied = repeat % 10 != 9;
    const bool narrow = Flip(random);
    AdamWOp<TensorView> op = narrow ? MakeNarrow(memory, random, scalars, n, false)
                                    : MakeAdamW(memory, random, scalars, n);
    if (narrow) ZeroGaps(op);
    op.segments = RandomSegments(random, n, many);
    const AfterStep reference = ReferenceOf(op, scalars);
    const TensorView master = memory.Clone(op.master), m = memory.Clone(op.m);
    Run(subject, memory, subject.table.adamw, op);
    CheckDowncast(op);
    if (scalars.applied == 0) {
      CHECK(SameBits(op.master, master));
      CHECK(SameBits(op.m, m));
      continue;
    }
    CheckNear(op.master, reference.master, "master");
    if (narrow) {
      CheckRounded(op, op.m, reference.m, 0, scalars.adam_t);
      CheckRounded(op, op.v, reference.v, 16, scalars.adam_t);
    } else {
      CheckNear(op.m, reference.m, "m");
      CheckNear(op.v, reference.v, "v");
    }
  }

  // Segments that say what the op says of all, and decay where its ranges do: the same bits.
  for (int repeat = 0; repeat < 10; ++repeat) {
    Memory memory;
    const StepScalars scalars = MakeScalars();
    const int64_t n = Pick(random, 1, 3000);
    const AdamWOp<TensorView> op = MakeAdamW(memory, random, scalars, n);
    AdamWOp<TensorView> by_segment = op;
    for (TensorView* view : {&by_segment.master, &by_segment.m, &by_segment.v})
      *view = memory.Clone(*view);
    if (op.compute) by_segment.compute = memory.Clone(op.compute);
    UpdateSegment keeps{.beta1 = op.beta1, .beta2 = op.beta2, .eps = op.eps}, decays = keeps;
    decays.weight_decay = op.weight_decay;
    auto segments = std::make_shared<std::vector<UpdateSegment>>(1, keeps);
    for (const Range& range : *op.decay) {
      decays.begin = range.begin, keeps.begin = range.end;
      if (range.begin == 0) segments->clear();
      segments->push_back(decays);
      segments->push_back(keeps);
    }
    by_segment.segments = segments;
    Run(subject, memory, subject.table.adamw, op);
    Run(subject, memory, subject.table.adamw, by_segment);
    CHECK(SameBits(op.master, by_segment.master));
    CHECK(SameBits(op.m, by_segment.m));
    CHECK(SameBits(op.v, by_segment.v));
  }
}

void AdamWContract(const Subject& subject) {
  Random random(90);
  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    const int64_t n = repeat == 0       ? 0
                      : repeat % 4 == 0 ? Pick(random, 500, 1600)
                                        : PickSize(random);
    StepScalars scalars = MakeScalars();
    scalars.adam_t = repeat % 5 == 0 ? 1 : Pick(random, 2, 5000);
    const AdamWOp<TensorView> op = MakeAdamW(memory, random, scalars, n);
    const AfterStep reference = ReferenceOf(op, scalars);
    Run(subject, memory, subject.table.adamw, op);
    CheckNear(op.m, reference.m, "m");
    CheckNear(op.v, reference.v, "v");
    CheckNear(op.master, reference.master, "master");
    CheckDowncast(op);
  }

  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    const bool many = repeat % 8 == 7;  // runs, more than a launch takes
    const int64_t n = repeat == 0       ? 0
                      : many            ? 700
                      : repeat % 4 == 0 ? Pick(random, 500, 1600)
                                        : PickSize(random);
    StepScalars scalars = MakeScalars();
    scalars.adam_t = repeat % 5 == 0 ? 1 : Pick(random, 2, 5000);
    const AdamWOp<TensorView> op = MakeNarrow(memory, random, scalars, n, many);
    const AfterStep reference = ReferenceOf(op, scalars);
    Run(subject, memory, subject.table.adamw, op);
    CheckRounded(op, op.m, reference.m, 0, scalars.adam_t);
    CheckRounded(op, op.v, reference.v, 16, scalars.adam_t);
    CheckNear(op.master, reference.master, "master");
    CheckDowncast(op);
  }

  // A skipped step changes no bit, NaN gradient or not; the downcast is still written.
  for (int repeat = 0; repeat < 10; ++repeat) {
    Memory memory;
    StepScalars scalars = MakeScalars();
    scalars.applied = 0;
    scalars.lr = std::nan("");
    const AdamWOp<TensorView> op = repeat % 2 == 0
                                       ? MakeAdamW(memory, random, scalars, 600)
                                       : MakeNarrow(memory, random, scalars, 600, false);
    for (int64_t i = 0; i < 600; i += 7) Set(op.grad, {i}, std::nan(""));
    const TensorView master = memory.Clone(op.master), m = memory.Clone(op.m),
                     v = memory.Clone(op.v);
    Run(subject, memory, subject.table.adamw, op);
    CHECK(SameBits(op.master, master));
    CHECK(SameBits(op.m, m));
    CHECK(SameBits(op.v, v));
    CheckDowncast(op);
  }

  // Zero gradient on zero state leaves a zero where nothing decays: the gaps of a
  // flat parameter stay zero.
  Memory memory;
  AdamWOp<TensorView> op = MakeAdamW(memory, random, MakeScalars(), 33);
  op.decay = std::make_shared<std::vector<Range>>();
  for (const TensorView* view : {&op.master, &op.m, &op.v, &op.grad})
    ForEach(view->layout, [&](const Index& i) { Set(*view, i, 0); });
  const TensorView zero = memory.Clone(op.master);
  Run(subject, memory, subject.table.adamw, op);
  CHECK(SameBits(op.master, zero));
  CHECK(SameBits(op.m, zero));
  CHECK(SameBits(op.v, zero));
}

}  // namespace millrace::test
