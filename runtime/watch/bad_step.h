// What is said of a step whose update was not applied.
#pragma once

#include <span>
#include <string>

#include "runtime/plan/layout/shard_layout.h"
#include "runtime/plan/step_plan.h"
#include "runtime/watch/guard.h"

namespace millrace {

// "gradient of unit h.0 on rank 1", "loss 8.1034 above 3.2155": for metrics.jsonl. Not of a step
// that has overflown.
std::string OffenderOf(const StepScalars& scalars, const ShardLayout& layout);

// "no room for 37 pairs of token and expert in h.3, 2 in h.5"; `counts`: of the plan's overflows.
std::string OverflowText(const StepPlan& plan, std::span<const float> counts);

// "non-finite loss on rank 1", "a spike: loss 8.1034 above 3.2155".
std::string WhatWasBad(const StepScalars& scalars, const ShardLayout& layout);

// "overflow at a loss scale of 65536: gradient of unit h.0 on rank 1": of one that has scaled down.
std::string ScaledDownText(const StepScalars& scalars, const ShardLayout& layout);

// As WhatWasBad, and why it is not skipped or rolled back: `made` roll-backs are behind the run.
std::string WhyStopped(const StepScalars& scalars, const ShardLayout& layout,
                       const GuardConfig& config, size_t made);

}  // namespace millrace
