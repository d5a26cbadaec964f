#include "kernels/cpu/step/update.h"

#include <cmath>
#include <optional>
#include <tuple>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/ops/rounding.h"
#include "runtime/base/step_scalars.h"

namespace millrace::cpu {
namespace {

// Everything that is equal for all elements, rounded to float once.
struct Factors {
  float clip, beta1, beta2, one_minus_beta1, one_minus_beta2;
  float step;                // lr / (1 - beta1^t)
  float inverse_sqrt_bias2;  // 1 / sqrt(1 - beta2^t)
  float eps;
  float keep;  // 1 - lr * weight_decay
};

Factors FactorsOf(const UpdateSegment& by, const StepScalars& s) {
  const double t = static_cast<double>(s.adam_t), lr = s.lr * by.lr_scale;
  const auto f = [](double value) { return static_cast<float>(value); };
  return {f(s.clip_scale),
          f(by.beta1),
          f(by.beta2),
          f(1 - by.beta1),
          f(1 - by.beta2),
          f(lr / (1 - std::pow(by.beta1, t))),
          f(1 / std::sqrt(1 - std::pow(by.beta2, t))),
          f(by.eps),
          f(1 - lr * by.weight_decay)};
}

// The random words of elements of a shard, asked for in rising order.
class Words {
 public:
  Words(const AdamWOp<TensorView>& op, int64_t t)
      : runs_(*op.runs), first_(op.flat_begin.value()), place_(op.place.value()), t_(t) {}

  uint32_t Of(int64_t element) {
    const int64_t i = first_ + element;
    while (run_ < runs_.size() && runs_[run_].end <= i) ++run_, group_ = -1;
    if (run_ == runs_.size() || i < runs_[run_].begin) return 0;
    const int64_t at = runs_[run_].At(i, place_);
    if (at / 4 != group_) words_ = MomentWords(runs_[run_].key, group_ = at / 4, t_);
    return words_[static_cast<size_t>(at % 4)];
  }

 private:
  const std::vector<LogicalRun>& runs_;
  const int64_t first_, place_, t_;
  size_t run_ = 0;
  int64_t group_ = -1;
  PhiloxCounter words_{};
};

// One stretch of elements with the same decay; at most kChunk. `words`: of bf16 moments.
void UpdateStretch(const AdamWOp<TensorView>& op, const Factors& factors, int64_t begin, int64_t n,
                   float keep, std::optional<Words>& words) {
  float* const w = op.master.as<float>() + begin;
  float wide_m[kChunk], wide_v[kChunk];
  float* const m = words ? wide_m : op.m.as<float>() + begin;
  float* const v = words ? wide_v : op.v.as<float>() + begin;
  if (words) {
    ConvertToFloat(op.m.as<BFloat16>() + begin, wide_m, n);
    ConvertToFloat(op.v.as<BFloat16>() + begin, wide_v, n);
  }
  float buffer[kChunk], root[kChunk];
  const float* const grad = Load({op.grad.data, 1, op.grad.dtype()}, begin, n, buffer);
  const Factors f = factors;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = grad[i] * f.clip;
    m[i] = f.beta1 * m[i] + f.one_minus_beta1 * g;
    v[i] = f.beta2 * v[i] + f.one_minus_beta2 * (g * g);
    root[i] = v[i];
  }
  Sqrt(root, n);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    w[i] = w[i] * keep - f.step * (m[i] / (root[i] * f.inverse_sqrt_bias2 + f.eps));
  for (int64_t i = 0; words && i < n; ++i) {
    const uint32_t word = words->Of(begin + i);
    op.m.as<BFloat16>()[begin + i] = RoundStochastically(m[i], word & 0xffffu);
    op.v.as<BFloat16>()[begin + i] = RoundStochastically(v[i], word >> 16);
  }
}

// f(begin, end, factors, keep) for the maximal stretches of shard elements [0, n) that have one
// segment, or lie inside or outside the decay ranges.
template <class F>
void ForStretches(const AdamWOp<TensorView>& op, const StepScalars& scalars, int64_t n, F&& f) {
  const int64_t flat_begin = op.flat_begin.value();
  if (op.segments)
    return ForSegments(*op.segments, flat_begin, n,
                       [&](int64_t begin, int64_t end, const UpdateSegment& segment) {
                         const Factors factors = FactorsOf(segment, scalars);
                         f(begin, end, factors, factors.keep);
                       });
  const Factors factors = FactorsOf(
      {.weight_decay = op.weight_decay, .beta1 = op.beta1, .beta2 = op.beta2, .eps = op.eps},
      scalars);
  int64_t done = 0;
  if (op.decay) {
    for (const Range& range : *op.decay) {
      const int64_t begin = std::max(done, range.begin - flat_begin),
                    end = std::min(n, range.end - flat_begin);
      if (begin >= end) continue;
      f(done, begin, factors, 1.0f);
      f(begin, end, factors, factors.keep);
      done = end;
    }
  }
  f(done, n, factors, 1.0f);
}

}  // namespace

void BeginStep(const BeginStepOp<TensorView>& op, Stream&) {
  StepScalars& scalars = *op.scalars.as<StepScalars>();
  scalars.lr = LearningRateAt(op.schedule, scalars.step);
  scalars.loss_scale = op.scaling.init_scale == 0    ? 1
                       : scalars.next_loss_scale > 0 ? scalars.next_loss_scale
                                                     : static_cast<float>(op.scaling.init_scale);
}

void AdamW(const AdamWOp<TensorView>& op, Stream&) {
  const int64_t n = op.master.numel();
  const DType moments = op.m.dtype();
  MR_CHECK(moments == DType::kF32 || (moments == DType::kBF16 && op.runs != nullptr),
           "adamw: m is {}{}", Name(moments), op.runs == nullptr ? " without runs" : "");
  for (const auto& [view, name, dtype] : {std::tuple{&op.master, "master", DType::kF32},
                                          {&op.m, "m", moments},
                                          {&op.v, "v", moments}}) {
    MR_CHECK(view->dtype() == dtype && view->numel() == n, "adamw: {} is {}, master is {}", name,
             ToString(view->layout), ToString(op.master.layout));
    Flat(*view, name);
  }
  CheckFloat(op.grad, "grad");
  MR_CHECK_EQ(op.grad.numel(), n, "adamw: elements of grad");
  Flat(op.grad, "grad");

  const StepScalars& scalars = *op.scalars.as<StepScalars>();
  if (scalars.applied != 0) {
    std::optional<Words> words;
    if (moments == DType::kBF16) words.emplace(op, scalars.adam_t);
    ForStretches(op, scalars, n,
                 [&](int64_t begin, int64_t end, const Factors& factors, float keep) {
                   ForChunks(end - begin, [&](int64_t c, int64_t count) {
                     UpdateStretch(op, factors, begin + c, count, keep, words);
                   });
                 });
  }
  if (op.compute) {
    CheckFloat(op.compute, "compute");
    MR_CHECK_EQ(op.compute.numel(), n, "adamw: elements of compute");
    const Row compute = Flat(op.compute, "compute");
    ForChunks(
        n, [&](int64_t c, int64_t count) { Store(compute, c, count, op.master.as<float>() + c); });
  }
}

}  // namespace millrace::cpu
