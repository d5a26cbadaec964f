// millrace bench: steps on synthetic tokens, one JSON line.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/api/metrics.h"
#include "runtime/api/prediction.h"
#include "runtime/config/enum_names.h"
#include "tools/cli/call_timer.h"
#include "tools/cli/command.h"
#include "tools/cli/text.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

// Steps whose calls are timed one by one, after the steps that step_ms tells of.
constexpr int64_t kIssueSteps = 5;

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

// Seconds of one step, which all ranks begin together.
double TimeStep(Session& session, int64_t step) {
  const std::vector<int32_t> tokens = session.batcher().Step(step, session.rank());
  session.engine().comms().world().Barrier();
  const auto start = Clock::now();
  session.engine().Step(tokens, step, session.batcher().valid_tokens());
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Host time to issue one step: its time outside kernels and communicators.
double HostMicroseconds(Session& session, CallTimer& timer, int64_t first_step) {
  std::vector<double> host;
  timer.TurnOn();
  for (int64_t i = 0; i < kIssueSteps; ++i) {
    const double before = timer.seconds();
    const double step = TimeStep(session, first_step + i);
    host.push_back(1e6 * (step - (timer.seconds() - before)));
  }
  return Quantile(host, 0.5);
}

}  // namespace

int BenchVerb(const BenchArguments& arguments) {
  const PlanSelection plans{true, false, false};
  ConfigArguments config = arguments.config;
  config.sets.push_back("data.kind=synthetic");  // the data loader is not what is measured
  return RunOnRanks(config, plans, [&](RankContext& context) {
    CallTimer timer(*context.environment.kernels, context.factory);
    context.environment.kernels = &timer.kernels();
    context.environment.comm_factory = &timer;
    Session session(context.config.config, context.environment, {plans, true});
    session.InitWeights();
    std::vector<double> step_ms;
    const int64_t steps = arguments.warmup + arguments.steps;
    for (int64_t step = 0; step < steps; ++step) {
      const double seconds = TimeStep(session, step);
      if (step >= arguments.warmup) step_ms.push_back(1e3 * seconds);
    }
    const double host_us = HostMicroseconds(session, timer, steps);
    if (!context.leader()) return 0;
    const Config& c = session.config();
    const MfuBasis basis = MfuBasisOf(session, ThisMachine());
    const double median = Quantile(step_ms, 0.5);
    const double rate =
        static_cast<double>(session.batcher().valid_tokens()) / session.world() / (median / 1e3);
    const nlohmann::ordered_json line = {
        {"step_ms", median},
        {"step_ms_p10", Quantile(step_ms, 0.1)},
        {"step_ms_p90", Quantile(step_ms, 0.9)},
        {"tokens_per_s_per_rank", rate},
        {"model_flops_per_token_causal", basis.flops_per_token},
        {"model_flops_per_token_full", basis.flops_per_token_full},
        {"mfu_causal", rate * basis.flops_per_token / basis.peak_flops_per_rank},
        {"mfu_full", rate * basis.flops_per_token_full / basis.peak_flops_per_rank},
        {"peak_flops_per_rank", basis.peak_flops_per_rank},
        {"mfu_basis", basis.text},
        {"peak_bytes", PeakResidentBytes()},
        {"arena_bytes", session.engine().arena_bytes()},
        {"host_us_per_step", host_us},
        {"graph", Name(c.execution.graph)},
        {"deterministic", c.execution.deterministic},
        {"device", context.environment.device->name()},
        {"world", session.world()},
        {"steps", arguments.steps},
        {"warmup", arguments.warmup}};
    if (arguments.json) {
      std::cout << line.dump() << std::endl;
      return 0;
    }
    std::cout << fmt::format(
                     "step {:.2f} ms (p10 {:.2f}, p90 {:.2f}), {:.0f} tokens/s per rank, {} ranks, issued in "
                     "{:.0f} us",
                     median, Quantile(step_ms, 0.1), Quantile(step_ms, 0.9), rate, session.world(), host_us)
              << std::endl;
    return 0;
  });
}

}  // namespace millrace
