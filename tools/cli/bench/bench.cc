// millrace bench: steps on synthetic tokens, one JSON line.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/quantile.h"
#include "runtime/config/enum_names.h"
#include "runtime/data/file_system.h"
#include "runtime/run/memory_use.h"
#include "runtime/run/prediction.h"
#include "tools/cli/bench/call_timer.h"
#include "tools/cli/bench/floor.h"
#include "tools/cli/bench/ops.h"
#include "tools/cli/bench/rates.h"
#include "tools/cli/bench/trace.h"
#include "tools/cli/bench/update.h"
#include "tools/cli/command.h"
#include "tools/cli/text.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

// Steps that are issued one by one, after those that step_ms tells of.
constexpr int64_t kIssueSteps = 9;
// Eager steps whose ops are timed one by one, after those.
constexpr int64_t kOpSteps = 5;

struct Times {
  // From the end of one step to the end of the next, by the device's clock.
  std::vector<double> step_ms;
  std::vector<double> enqueue_us;  // time of each call of Enqueue
};

// Steps [first, first + count). On a device that works while the host goes on, a step stays in
// flight, as in training; on a host device all ranks begin each step together.
Times RunSteps(Session& session, int64_t first, int64_t count) {
  Engine& engine = session.engine();
  const bool async = session.device().captures();
  const int lag = engine.lag();
  const PhaseScope phase = session.Phase(RunPhase::kTraining, first);
  Times times;
  auto last = Clock::now();
  for (int64_t step = first; step < first + count || engine.steps_in_flight() > 0; ++step) {
    if (step < first + count) {
      const std::vector<int32_t> tokens = session.batcher().Step(step, session.data_rank());
      if (!async) engine.comms().world().Barrier();
      const auto start = Clock::now();
      if (!async || step == first) last = start;
      engine.Enqueue(tokens, step, session.batcher().valid_tokens());
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

// Host time per step: what issuing a step takes while the device has nothing to do. Were a step
// still in flight, the call would wait for room in the device's queue of launches, and its time
// would be the device's. On a host device, which has run a step when it was issued, the time of
// that call outside kernels and communicators (`timer`, else null). One sample per step.
std::vector<double> HostMicroseconds(Session& session, CallTimer* timer, int64_t first_step) {
  std::vector<double> host;
  if (timer != nullptr) timer->TurnOn();
  for (int64_t i = 0; i < kIssueSteps; ++i) {
    MR_CHECK_EQ(session.engine().steps_in_flight(), 0, "a step is issued onto an idle device");
    const double before = timer != nullptr ? timer->seconds() : 0;
    const Times step = RunSteps(session, first_step + i, 1);
    const double in_kernels = timer != nullptr ? timer->seconds() - before : 0;
    host.push_back(step.enqueue_us[0] - 1e6 * in_kernels);
  }
  return host;
}

// Before anything is measured, as far as that can be told.
void RequireWritable(const char* option, const std::string& path) {
  if (path.empty()) return;
  const std::string folder = FolderOf(path);
  std::error_code ignored;
  MR_REQUIRE(ErrorCode::kIo, ::access(folder.c_str(), W_OK | X_OK) == 0,
             "{} {}: {} is no folder that can be written to", option, path, folder);
  MR_REQUIRE(ErrorCode::kIo, !std::filesystem::is_directory(path, ignored), "{} {}: is a folder",
             option, path);
}

}  // namespace

int BenchVerb(const BenchArguments& arguments) {
  const PlanSelection plans{"train"};
  ConfigArguments config = arguments.config;
  // The data loader is not what is measured. Paths would be idle keys, blamed on a --set that
  // nobody wrote.
  for (const char* set : {"data.kind=synthetic", "data.path=null", "data.val_path=null"})
    config.sets.emplace_back(set);
  return RunOnRanks(config, plans, [&](RankContext& context) {
    std::optional<CallTimer> timer;
    if (!context.environment.device->captures()) {
      timer.emplace(*context.environment.kernels, context.factory);
      context.environment.kernels = &timer->kernels();
      context.environment.comm_factory = &*timer;
    }
    MR_REQUIRE(ErrorCode::kConfig,
               !((arguments.ops || arguments.floor || !arguments.trace.empty()) &&
                 context.config.config.execution.checked),
               "--ops, --floor and --trace time ops one by one: not with execution.checked = true");
    MR_REQUIRE(
        ErrorCode::kConfig,
        arguments.graph_dot.empty() || GraphInForce(context.config.config) != GraphMode::kOff,
        "--graph-dot: nothing is recorded with execution.graph = off or execution.checked = "
        "true; graph step and microbatch are allowed");
    if (context.leader()) {
      RequireWritable("--trace", arguments.trace);
      RequireWritable("--graph-dot", arguments.graph_dot);
    }
    Session session(context.config.config, context.environment, {plans, true});
    if (context.leader())
      for (const std::string& note : ExecutionNotes(session.config()))
        std::cerr << "millrace: " << note << std::endl;
    session.InitWeights();
    RunSteps(session, 0, arguments.warmup);
    const Times times = RunSteps(session, arguments.warmup, arguments.steps);
    const std::vector<double>& step_ms = times.step_ms;
    const std::vector<double> host_us =
        HostMicroseconds(session, timer ? &*timer : nullptr, arguments.warmup + arguments.steps);
    std::vector<OpRow> ops;
    const StepCounters counters = session.engine().counters();
    std::optional<Floor> floor;
    if (arguments.ops || arguments.floor)
      ops = TimeOps(session, context.machine, kOpSteps,
                    [&, next = arguments.warmup + arguments.steps + kIssueSteps](int step) {
                      RunSteps(session, next + step, 1);
                    });
    const RecordedStep* const recorded = session.engine().recorded_step();
    const int64_t graph_nodes = recorded != nullptr ? recorded->nodes() : 0;
    if (context.leader() && !arguments.graph_dot.empty()) {
      MR_CHECK(recorded != nullptr, "no step was recorded");
      recorded->WriteDot(arguments.graph_dot);
    }
    const int64_t peak_bytes = MemoryBytes(session.device());
    std::optional<StepTrace> traced;
    if (!arguments.trace.empty())
      traced = TraceStep(
          session, arguments.trace,
          [&, next = arguments.warmup + arguments.steps + kIssueSteps +
                     kOpSteps](int64_t count) mutable {
            const int64_t first = std::exchange(next, next + count);
            return RunSteps(session, first, count).step_ms;
          },
          Quantile(step_ms, 0.5));
    std::vector<UpdateRow> updates;
    if (arguments.update) updates = TimeUpdates(session, context.environment);
    std::optional<RateFloor> rate_floor;
    if (arguments.floor) {
      floor = MeasureFloor(session, context.environment, context.machine);
      rate_floor = MeasureRateFloor(session, context.environment, context.machine, *floor);
      for (OpRow& row : ops) row.floor_ms = floor->kind_ms[row.kind];
    }
    if (!context.leader()) return 0;
    const Config& c = session.config();
    const int64_t run_steps = arguments.warmup + arguments.steps + kIssueSteps;
    const MfuBasis basis = MfuBasisOf(session, context.machine);
    const double median = Quantile(step_ms, 0.5);
    const double rate =
        static_cast<double>(session.batcher().valid_tokens()) / session.world() / (median / 1e3);
    nlohmann::ordered_json line = {
        {"step_ms", median},
        {"step_ms_p10", Quantile(step_ms, 0.1)},
        {"step_ms_p90", Quantile(step_ms, 0.9)},
        {"step_ms_samples", step_ms},
        {"tokens_per_s_per_rank", rate},
        {"model_flops_per_token_causal", basis.flops_per_token},
        {"model_flops_per_token_full", basis.flops_per_token_full},
        {"mfu_causal", rate * basis.flops_per_token / basis.peak_flops_per_rank},
        {"mfu_full", rate * basis.flops_per_token_full / basis.peak_flops_per_rank},
        {"peak_flops_per_rank", basis.peak_flops_per_rank},
        {"mfu_basis", basis.text},
        {"peak_bytes", peak_bytes},
        {"arena_bytes", session.engine().arena_bytes()},
        {"memory_at_start_bytes", session.memory_marks().start},
        {"memory_with_communicators_bytes", session.memory_marks().communicators},
        {"memory_before_arena_bytes", session.memory_marks().before_arena},
        {"memory_ready_bytes", session.memory_marks().ready},
        {"gathered_bytes_per_step", counters.comm.gathered_bytes / run_steps},
        {"reduced_bytes_per_step", counters.comm.reduced_bytes / run_steps},
        {"cast_bytes_per_step", counters.kernels.cast_bytes / run_steps},
        {"concatenated_bytes_per_step", counters.kernels.concatenated_bytes / run_steps},
        {"host_us_per_step", Quantile(host_us, 0.5)},
        {"host_us_samples", host_us},
        {"graph", Name(GraphInForce(c))},
        {"graph_nodes", graph_nodes},
        {"graph_mark_nodes", recorded != nullptr ? recorded->mark_nodes() : 0},
        {"deterministic", c.execution.deterministic},
        {"peer_memory", session.peer_memory()},
        {"device", context.environment.device->name()},
        {"world", session.world()},
        {"steps", arguments.steps},
        {"warmup", arguments.warmup}};
    if (arguments.json) {
      if (!ops.empty()) line["ops"] = OpsJson(ops);
      if (traced) line["trace"] = traced->Json();
      if (floor) line["floor"] = FloorJson(*floor), line["floor_ms"] = floor->ms;
      if (rate_floor)
        line["rate_floor"] = RateFloorJson(*rate_floor), line["rate_floor_ms"] = rate_floor->ms;
      if (!updates.empty()) line["updates"] = UpdatesJson(updates);
      std::cout << DumpJson(line) << std::endl;
      return 0;
    }
    std::cout << fmt::format(
                     "step {:.2f} ms (p10 {:.2f}, p90 {:.2f}), {:.0f} tokens/s per rank, {} ranks, "
                     "issued in {:.0f} us, {} graph nodes",
                     median, Quantile(step_ms, 0.1), Quantile(step_ms, 0.9), rate, session.world(),
                     Quantile(host_us, 0.5), graph_nodes)
              << std::endl;
    if (traced) std::cout << traced->Text() << std::endl;
    if (!ops.empty()) std::cout << OpsText(ops) << std::flush;
    if (floor) std::cout << FloorText(*floor, median, ops) << std::flush;
    if (rate_floor) std::cout << RateFloorText(*rate_floor, median) << std::flush;
    if (!updates.empty()) std::cout << UpdatesText(updates) << std::flush;
    return 0;
  });
}

}  // namespace millrace
