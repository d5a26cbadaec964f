#include "runtime/watch/bad_step.h"

#include <fmt/core.h>

#include "runtime/base/error.h"

namespace millrace {

std::string OffenderOf(const StepScalars& scalars, const ShardLayout& layout) {
  if (scalars.offender_unit == kOffenderSpike)
    return fmt::format("loss {:.4f} above {:.4f}", scalars.loss, scalars.max_loss);
  if (scalars.offender_rank < 0) return "sum of gradients over the ranks, finite on each of them";
  if (scalars.offender_unit < 0) return fmt::format("loss on rank {}", scalars.offender_rank);
  return fmt::format("gradient of unit {} on rank {}",
                     layout.flats[static_cast<size_t>(scalars.offender_unit)].name,
                     scalars.offender_rank);
}

std::string OverflowText(const StepPlan& plan, std::span<const float> counts) {
  MR_CHECK_EQ(counts.size(), plan.overflows.size(), "blocks of the {} plan that may overflow",
              plan.name);
  std::string text;
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0)
      text += text.empty() ? fmt::format("{} pairs of token and expert in {}", counts[i],
                                         plan.overflows[i].name)
                           : fmt::format(", {} in {}", counts[i], plan.overflows[i].name);
  return "no room for " + text;
}

std::string WhatWasBad(const StepScalars& scalars, const ShardLayout& layout) {
  return (scalars.offender_unit == kOffenderSpike ? "a spike: " : "non-finite ") +
         OffenderOf(scalars, layout);
}

std::string ScaledDownText(const StepScalars& scalars, const ShardLayout& layout) {
  return fmt::format("overflow at a loss scale of {}: {}", scalars.loss_scale,
                     OffenderOf(scalars, layout));
}

std::string WhyStopped(const StepScalars& scalars, const ShardLayout& layout,
                       const GuardConfig& config, size_t made) {
  const bool spike = scalars.offender_unit == kOffenderSpike;
  const char* key = spike ? "guard.loss_spike" : "guard.non_finite";
  const std::string what = WhatWasBad(scalars, layout);
  if ((spike ? *config.loss_spike : config.non_finite) == GuardConfig::Policy::kStop)
    return fmt::format("{}; {} is stop", what, key);
  return fmt::format("{}; {} is roll_back, and {} were made already (guard.max_roll_backs)", what,
                     key, made);
}

}  // namespace millrace
