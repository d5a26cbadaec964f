#include "tools/cli/bench/steps.h"

#include <chrono>

#include "runtime/base/error.h"
#include "runtime/exec/engine.h"
#include "runtime/run/data/token_rows.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

StepTimes RunSteps(Session& session, int64_t first, int64_t count) {
  Engine& engine = session.engine();
  const bool async = session.device().captures();
  const int lag = engine.lag();
  const PhaseScope phase = session.Phase(RunPhase::kTraining, first);
  StepTimes times;
  auto last = Clock::now();
  for (int64_t step = first; step < first + count || engine.steps_in_flight() > 0; ++step) {
    if (step < first + count) {
      const Config& config = session.config();
      const TokenRows rows = StepRows(config, session.batcher(), step, session.data_rank(),
                                      session.batcher().Step(step, session.data_rank()));
      const LossTotals totals = TotalsOf(config, session.batcher(), step);
      if (!async) engine.comms().world().Barrier();
      const auto start = Clock::now();
      if (!async || step == first) last = start;
      engine.Enqueue(rows.inputs(), step, totals);
      times.enqueue_us.push_back(
          std::chrono::duration<double, std::micro>(Clock::now() - start).count());
      if (engine.steps_in_flight() <= lag) continue;
    }
    engine.Collect();
    const auto now = Clock::now();
    times.step_ms.push_back(async ? engine.step_ms()
                                  : std::chrono::duration<double, std::milli>(now - last).count());
    last = now;
  }
  return times;
}

std::vector<double> HostMicroseconds(Session& session, CallTimer* timer, int64_t first,
                                     int64_t count) {
  std::vector<double> host;
  if (timer != nullptr) timer->TurnOn();
  for (int64_t i = 0; i < count; ++i) {
    MR_CHECK_EQ(session.engine().steps_in_flight(), 0, "a step is issued onto an idle device");
    const double before = timer != nullptr ? timer->seconds() : 0;
    const StepTimes step = RunSteps(session, first + i, 1);
    const double in_kernels = timer != nullptr ? timer->seconds() - before : 0;
    host.push_back(step.enqueue_us[0] - 1e6 * in_kernels);
  }
  return host;
}

}  // namespace millrace
