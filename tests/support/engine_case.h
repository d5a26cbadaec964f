// Trains a PlanCase for real, on ranks as threads over the CPU kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops/kernel_table.h"
#include "runtime/exec/engine.h"
#include "tests/support/injection.h"
#include "tests/support/plan_case.h"

namespace millrace::test {

using MakeDevice = std::function<std::unique_ptr<Device>(int rank)>;

// Calls fn on every rank's thread with a fresh engine over the plans; weights initialised.
// `make_device` and `kernels` as below.
void RunEngines(const ShardLayout& layout, const RunPlans& plans, const EngineOptions& options,
                const std::function<void(Engine& engine, int rank)>& fn,
                const MakeDevice& make_device = {}, const KernelTable* kernels = nullptr);

// Calls fn on every rank's thread with a fresh engine over the case's training and evaluation
// plans; weights initialised. `make_device` (none: host devices): of host memory, which the CPU's
// kernels work on. `kernels` (null: those) outlive the call.
void RunEngines(const PlanCase& c, const EngineOptions& options,
                const std::function<void(Engine& engine, int rank)>& fn,
                const MakeDevice& make_device = {}, const KernelTable* kernels = nullptr);

// Token ids that encode rank, step and index; [accumulate, B, T+1].
std::vector<int32_t> TokensOf(const PlanCase& c, int rank, int64_t step);
// One step on them.
StepScalars TrainStep(Engine& engine, const PlanCase& c, int rank, int64_t step,
                      const Injection& injection = {});

// Bits of loss, gradient norm and master weights of every rank after `steps` steps, with an
// evaluation after the first.
std::string TrainedBits(const PlanCase& c, const EngineOptions& options, int64_t steps,
                        const MakeDevice& make_device = {});

}  // namespace millrace::test
