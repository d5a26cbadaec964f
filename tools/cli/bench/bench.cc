// millrace bench: steps on synthetic tokens, one JSON line.
#include <fmt/core.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/api/backend.h"
#include "runtime/api/step_power.h"
#include "runtime/base/counted.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/quantile.h"
#include "runtime/config/enum_names.h"
#include "runtime/data/file_system.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/recorded_step.h"
#include "runtime/run/memory_use.h"
#include "runtime/run/prediction.h"
#include "tools/cli/bench/call_timer.h"
#include "tools/cli/bench/decode.h"
#include "tools/cli/bench/floor.h"
#include "tools/cli/bench/ops.h"
#include "tools/cli/bench/rates.h"
#include "tools/cli/bench/steps.h"
#include "tools/cli/bench/trace.h"
#include "tools/cli/bench/update.h"
#include "tools/cli/command.h"
#include "tools/cli/text.h"

namespace millrace {
namespace {

// Steps that are issued one by one, after those that step_ms tells of.
constexpr int64_t kIssueSteps = 9;
// Eager steps whose ops are timed one by one, after those.
constexpr int64_t kOpSteps = 5;

// What a rank has measured; what was not asked for is empty.
struct Measured {
  std::vector<double> step_ms, host_us;
  StepPower power;  // while step_ms was measured
  StepCounters counters;
  std::vector<OpRow> ops;
  int64_t graph_nodes = 0, mark_nodes = 0;
  int64_t peak_bytes = 0;
  int64_t skipped = 0;  // steps whose update was; batches without room do not run again here
  std::optional<StepTrace> trace;
  std::vector<UpdateRow> updates;
  std::optional<Floor> floor;
  std::optional<RateFloor> rate_floor;
};

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

void RequireMeasurable(const BenchArguments& arguments, const RankContext& context) {
  const Config& config = context.config.config;
  MR_REQUIRE(
      ErrorCode::kConfig,
      !((arguments.ops || arguments.floor || !arguments.trace.empty()) && config.execution.checked),
      "--ops, --floor and --trace time ops one by one: not with execution.checked = true");
  MR_REQUIRE(ErrorCode::kConfig,
             arguments.graph_dot.empty() || GraphInForce(config) != GraphMode::kOff,
             "--graph-dot: nothing is recorded with execution.graph = off or execution.checked = "
             "true; graph step and microbatch are allowed");
  if (!context.leader()) return;
  RequireWritable("--trace", arguments.trace);
  RequireWritable("--graph-dot", arguments.graph_dot);
}

// Steps that every bench runs, whatever else is asked for.
int64_t PlainSteps(const BenchArguments& arguments) {
  return arguments.warmup + arguments.steps + kIssueSteps;
}

// Collective. `timer`: of a host device, else null.
Measured Measure(Session& session, const RankContext& context, const BenchArguments& arguments,
                 CallTimer* timer) {
  const int64_t plain_steps = PlainSteps(arguments);
  Measured m;
  PowerMeter meter(UuidOf(session.device()));
  RunSteps(session, 0, arguments.warmup);
  meter.Begin();
  session.engine().comms().world().Barrier();  // its first reading takes ranks milliseconds
  m.step_ms = RunSteps(session, arguments.warmup, arguments.steps).step_ms;
  const std::optional<GpuPower> power = meter.End();
  m.host_us = HostMicroseconds(session, timer, arguments.warmup + arguments.steps, kIssueSteps);
  m.counters = session.engine().counters();
  m.power =
      GatherPower(power, static_cast<double>(session.batcher().valid_tokens() * arguments.steps),
                  session.engine().comms().world());
  if (arguments.ops || arguments.floor)
    m.ops = TimeOps(session, context.machine, kOpSteps,
                    [&](int step) { RunSteps(session, plain_steps + step, 1); });
  const RecordedStep* const recorded = session.engine().recorded_step();
  if (recorded != nullptr) {
    m.graph_nodes = recorded->nodes();
    m.mark_nodes = recorded->mark_nodes();
  }
  if (context.leader() && !arguments.graph_dot.empty()) {
    MR_CHECK(recorded != nullptr, "no step was recorded");
    recorded->WriteDot(arguments.graph_dot);
  }
  m.peak_bytes = MemoryBytes(session.device());
  m.skipped = session.engine().ReadScalars().skipped;
  if (!arguments.trace.empty())
    m.trace = TraceStep(
        session, arguments.trace,
        [&, next = plain_steps + kOpSteps](int64_t count) mutable {
          const int64_t first = std::exchange(next, next + count);
          return RunSteps(session, first, count).step_ms;
        },
        Quantile(m.step_ms, 0.5));
  if (arguments.update) m.updates = TimeUpdates(session, context.environment);
  if (arguments.floor) {
    m.floor = MeasureFloor(session, context.environment, context.machine);
    m.rate_floor = MeasureRateFloor(session, context.environment, context.machine, *m.floor);
    for (OpRow& row : m.ops) row.floor_ms = m.floor->kind_ms[row.kind];
  }
  return m;
}

double TokensPerSecond(const Session& session, double step_ms) {
  return static_cast<double>(session.batcher().valid_tokens()) / session.world() / (step_ms / 1e3);
}

// The line of --json.
nlohmann::ordered_json Line(const Measured& m, Session& session, const Machine& machine,
                            const BenchArguments& arguments) {
  const Config& c = session.config();
  const int64_t run_steps = PlainSteps(arguments);
  const MfuBasis basis = MfuBasisOf(session, machine);
  const double median = Quantile(m.step_ms, 0.5);
  const double rate = TokensPerSecond(session, median);
  nlohmann::ordered_json line = {
      {"step_ms", median},
      {"step_ms_p10", Quantile(m.step_ms, 0.1)},
      {"step_ms_p90", Quantile(m.step_ms, 0.9)},
      {"step_ms_samples", m.step_ms},
      {"tokens_per_s_per_rank", rate},
      {"model_flops_per_token_causal", basis.flops_per_token},
      {"model_flops_per_token_full", basis.flops_per_token_full},
      {"mfu_causal", rate * basis.flops_per_token / basis.peak_flops_per_rank},
      {"mfu_full", rate * basis.flops_per_token_full / basis.peak_flops_per_rank},
      {"peak_flops_per_rank", basis.peak_flops_per_rank},
      {"mfu_basis", basis.text},
      {"power", PowerJson(m.power)},
      {"peak_bytes", m.peak_bytes},
      {"arena_bytes", session.engine().arena_bytes()},
      {"memory_at_start_bytes", session.memory_marks().start},
      {"memory_with_communicators_bytes", session.memory_marks().communicators},
      {"memory_before_arena_bytes", session.memory_marks().before_arena},
      {"memory_ready_bytes", session.memory_marks().ready},
      {"gathered_bytes_per_step", m.counters.comm.gathered_bytes / run_steps},
      {"reduced_bytes_per_step", m.counters.comm.reduced_bytes / run_steps},
      {"cast_bytes_per_step", m.counters.kernels.cast_bytes / run_steps},
      {"concatenated_bytes_per_step", m.counters.kernels.concatenated_bytes / run_steps},
      {"host_us_per_step", Quantile(m.host_us, 0.5)},
      {"host_us_samples", m.host_us},
      {"graph", Name(GraphInForce(c))},
      {"graph_nodes", m.graph_nodes},
      {"graph_mark_nodes", m.mark_nodes},
      {"deterministic", c.execution.deterministic},
      {"gate", c.model.Has('E') ? nlohmann::json(Name(c.model.moe.gate)) : nlohmann::json()},
      {"peer_memory", session.peer_memory()},
      {"device", session.device().name()},
      {"world", session.world()},
      {"skipped_steps", m.skipped},
      {"steps", arguments.steps},
      {"warmup", arguments.warmup}};
  if (!m.ops.empty()) line["ops"] = OpsJson(m.ops);
  if (m.trace) line["trace"] = m.trace->Json();
  if (m.floor) line["floor"] = FloorJson(*m.floor), line["floor_ms"] = m.floor->ms;
  if (m.rate_floor)
    line["rate_floor"] = RateFloorJson(*m.rate_floor), line["rate_floor_ms"] = m.rate_floor->ms;
  if (!m.updates.empty()) line["updates"] = UpdatesJson(m.updates);
  return line;
}

void SayText(const Measured& m, const Session& session) {
  const double median = Quantile(m.step_ms, 0.5);
  std::cout << fmt::format(
                   "step {:.2f} ms (p10 {:.2f}, p90 {:.2f}), {:.0f} tokens/s per rank, {}, "
                   "issued in {:.0f} us, {} graph nodes",
                   median, Quantile(m.step_ms, 0.1), Quantile(m.step_ms, 0.9),
                   TokensPerSecond(session, median), Counted(session.world(), "rank"),
                   Quantile(m.host_us, 0.5), m.graph_nodes)
            << std::endl;
  if (const std::string power = PowerText(m.power); !power.empty()) std::cout << power << std::endl;
  if (m.skipped > 0)
    std::cout << fmt::format("{} steps were skipped, not finite or without room for all rows",
                             m.skipped)
              << std::endl;
  if (m.trace) std::cout << m.trace->Text() << std::endl;
  if (!m.ops.empty()) std::cout << OpsText(m.ops) << std::flush;
  if (m.floor) std::cout << FloorText(*m.floor, median, m.ops) << std::flush;
  if (m.rate_floor) std::cout << RateFloorText(*m.rate_floor, median) << std::flush;
  if (!m.updates.empty()) std::cout << UpdatesText(m.updates) << std::flush;
}

}  // namespace

int BenchVerb(const BenchArguments& arguments) {
  const PlanSelection plans{"train"};
  ConfigArguments config = arguments.config;
  // The data loader is not what is measured. Paths would be idle keys, blamed on a --set that
  // nobody wrote.
  for (const char* set : {"data.kind=synthetic", "data.path=null", "data.val_path=null"})
    config.sets.emplace_back(set);
  if (!arguments.decode.empty()) return BenchDecode(arguments, config);
  return RunOnRanks(config, plans, [&](RankContext& context) {
    std::optional<CallTimer> timer;
    if (!context.environment.device->captures()) {
      timer.emplace(*context.environment.kernels, context.factory);
      context.environment.kernels = &timer->kernels();
      context.environment.comm_factory = &*timer;
    }
    RequireMeasurable(arguments, context);
    Session session(context.config.config, context.environment, {plans, true});
    if (context.leader())
      for (const std::string& note : ExecutionNotes(session.config()))
        std::cerr << "millrace: " << note << std::endl;
    session.InitWeights();
    const Measured measured = Measure(session, context, arguments, timer ? &*timer : nullptr);
    if (!context.leader()) return 0;
    if (arguments.json)
      std::cout << DumpJson(Line(measured, session, context.machine, arguments)) << std::endl;
    else
      SayText(measured, session);
    return 0;
  });
}

}  // namespace millrace
