// millrace bench: steps on synthetic tokens, one JSON line.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/api/metrics.h"
#include "runtime/config/enum_names.h"
#include "tools/cli/command.h"
#include "tools/cli/text.h"

namespace millrace {
namespace {

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

}  // namespace

int BenchVerb(const BenchArguments& arguments) {
  const PlanSelection plans{true, false, false};
  ConfigArguments config = arguments.config;
  config.sets.push_back("data.kind=synthetic");  // the data loader is not what is measured
  return RunOnRanks(config, plans, [&](RankContext& context) {
    Session session(context.config.config, context.environment, {plans, true});
    session.InitWeights();
    std::vector<double> step_ms;
    for (int64_t step = 0; step < arguments.warmup + arguments.steps; ++step) {
      const std::vector<int32_t> tokens = session.batcher().Step(step, session.rank());
      session.engine().comms().world().Barrier();
      const auto start = std::chrono::steady_clock::now();
      session.engine().Step(tokens, step, session.batcher().valid_tokens());
      if (step >= arguments.warmup)
        step_ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    }
    if (!context.leader()) return 0;
    const Config& c = session.config();
    const MfuBasis basis = MfuBasisOf(session);
    const double median = Quantile(step_ms, 0.5);
    const double rate = static_cast<double>(session.batcher().valid_tokens()) / session.world() / (median / 1e3);
    nlohmann::ordered_json line = {
        {"step_ms", median},
        {"step_ms_p10", Quantile(step_ms, 0.1)},
        {"step_ms_p90", Quantile(step_ms, 0.9)},
        {"tokens_per_s_per_rank", rate},
        {"model_flops_per_token_causal", basis.flops_per_token},
        {"model_flops_per_token_full", basis.flops_per_token_full},
        {"mfu_causal", basis.peak_flops_per_rank > 0 ? rate * basis.flops_per_token / basis.peak_flops_per_rank : 0.0},
        {"mfu_full", basis.peak_flops_per_rank > 0 ? rate * basis.flops_per_token_full / basis.peak_flops_per_rank : 0.0},
        {"mfu_basis", basis.text},
        {"peak_bytes", PeakResidentBytes()},
        {"arena_bytes", session.engine().arena_bytes()},
        {"host_us_per_step", nullptr},
        {"graph", Name(c.execution.graph)},
        {"deterministic", c.execution.deterministic},
        {"device", context.environment.device->name()},
        {"world", session.world()},
        {"steps", arguments.steps},
        {"warmup", arguments.warmup}};
    // On the CPU issuing an op is running it: there is no host time apart from the step's.
    if (arguments.json) {
      std::cout << line.dump() << std::endl;
      return 0;
    }
    std::cout << fmt::format("step {:.2f} ms (p10 {:.2f}, p90 {:.2f}), {:.0f} tokens/s per rank, {} ranks", median, Quantile(step_ms, 0.1),
                             Quantile(step_ms, 0.9), rate, session.world())
              << std::endl;
    return 0;
  });
}

}  // namespace millrace
