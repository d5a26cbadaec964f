#include "kernels/cpu/moe/router_balance.h"

#include <algorithm>

#include "kernels/cpu/rows.h"
#include "runtime/base/step_scalars.h"

namespace millrace::cpu {
namespace {

void CheckDense(const TensorView& view, DType dtype, int64_t numel, const char* name) {
  MR_CHECK(view.dtype() == dtype && view.numel() == numel && view.layout.contiguous(),
           "{} is {}; dense {} of {} elements is needed", name, ToString(view.layout), Name(dtype),
           numel);
}

}  // namespace

void RouterBalance(const RouterBalanceOp<TensorView>& op, Stream&) {
  const int64_t groups = op.stats.dim(0), experts = op.stats.dim(2);
  CheckDense(op.stats, DType::kF32, groups * 2 * experts, "stats");
  CheckDense(op.balance, DType::kF32, groups * experts, "balance");
  CheckDense(op.loss_sum, DType::kF64, 1, "loss_sum");
  const StepScalars& scalars = *op.scalars.as<StepScalars>();
  const double slope = op.loss_weight * scalars.inv_valid_tokens * static_cast<double>(op.tokens) *
                       op.factor * scalars.loss_scale;
  double sum = 0;
  for (int64_t g = 0; g < groups; ++g) {
    const float *counts = op.stats.as<float>() + g * 2 * experts, *sums = counts + experts;
    for (int64_t e = 0; e < experts; ++e) {
      sum += double{counts[e]} * double{sums[e]};
      op.balance.as<float>()[g * experts + e] = static_cast<float>(slope * double{counts[e]});
    }
  }
  double* const loss = op.loss_sum.as<double>();
  *loss = (op.loss_update == Update::kAccumulate ? *loss : 0) +
          static_cast<double>(op.rows) * op.factor * sum;
}

void ExpertLoad(const ExpertLoadOp<TensorView>& op, Stream&) {
  const int64_t experts = op.load.numel();
  CheckDense(op.offsets, DType::kI32, experts + 1, "offsets");
  CheckDense(op.load, DType::kF32, experts, "load");
  const int32_t* const offsets = op.offsets.as<int32_t>();
  float* const load = op.load.as<float>();
  for (int64_t e = 0; e < experts; ++e)
    load[e] = (op.update == Update::kAccumulate ? load[e] : 0.0f) +
              static_cast<float>(offsets[e + 1] - offsets[e]);
}

// Compared as integers, experts times each, so that a load that is the mean moves nothing.
void RouterBias(const RouterBiasOp<TensorView>& op, Stream&) {
  const int64_t n = op.bias.numel(), first = op.flat_begin.value();
  CheckDense(op.bias, DType::kF32, n, "bias");
  CheckDense(op.load, DType::kF32, n, "load");
  if (op.scalars.as<StepScalars>()->applied == 0) return;
  float* const bias = op.bias.as<float>();
  const float rate = static_cast<float>(op.rate);
  for (const Range& range : *op.ranges)
    for (int64_t i = std::max<int64_t>(0, range.begin - first); i < std::min(n, range.end - first);
         ++i) {
      const int64_t loads = static_cast<int64_t>(op.load.as<float>()[i]) * op.experts;
      if (loads != op.pairs) bias[i] += loads < op.pairs ? rate : -rate;
    }
}

}  // namespace millrace::cpu
