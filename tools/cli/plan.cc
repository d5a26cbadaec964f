// millrace plan: what a run will need and how long it will take, with no GPU and no MPI.
#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "comm/host_collectives.h"
#include "runtime/api/peer_decision.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/mesh.h"
#include "runtime/data/file_system.h"
#include "runtime/picture/text.h"
#include "runtime/plan/cost/machine_file.h"
#include "runtime/plan/pool/pool_config.h"
#include "runtime/plan/report/plan_html.h"
#include "runtime/plan/report/plan_json.h"
#include "runtime/plan/report/plan_report.h"
#include "runtime/plan/report/plan_text.h"
#include "runtime/plan/report/plan_trace.h"
#include "runtime/run/advise.h"
#include "runtime/run/assemble.h"
#include "runtime/run/exchange.h"
#include "tools/cli/command.h"

namespace millrace {
namespace {

int PoolOnly(const PlanArguments& arguments) {
  MR_REQUIRE(ErrorCode::kConfig,
             arguments.config.files.size() == 1 && arguments.config.sets.empty(),
             "--pool-only reads one bucket pool file and takes no --set");
  const std::string& path = arguments.config.files.front();
  std::ifstream in(path);
  MR_REQUIRE(ErrorCode::kConfig, in.good(), "{}: cannot be read", path);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const nlohmann::json document = TryParseJson(text);
  MR_REQUIRE(ErrorCode::kConfig, !document.is_discarded(), "{}: not a JSON document", path);
  const nlohmann::json figures = PoolFiguresJson(PlanPoolFigures(ParsePoolConfig(document)));
  if (arguments.json) {
    std::cout << DumpJson(figures) << std::endl;
    return 0;
  }
  const int64_t bound = std::max<int64_t>(figures.at("pool").at("lower_bound").get<int64_t>(), 1);
  for (const auto& [name, bytes] : figures.at("pool").items())
    std::cout << fmt::format(
        "{:<12} {:>16} bytes  {:>10}  {:.2f} x lower bound\n", name, bytes.get<int64_t>(),
        BytesText(bytes.get<int64_t>()),
        static_cast<double>(bytes.get<int64_t>()) / static_cast<double>(bound));
  return 0;
}

// `on` where a copy of the parameters is on several hosts is refused, as by `train`.
void RequirePeersOnOneHost(const Config& config, int world, const Machine& machine) {
  const Mesh mesh = MeshOf(config, world);
  const int copy = mesh.Size(kCopyAxes);
  DecidePeerMemory(config.execution.peer_memory, Backend::kCuda, mesh, [&]() -> std::string {
    const int host = machine.ranks_per_host;
    for (int first = 0; host > 0 && first < world; first += copy)
      if (const int last = first + copy - 1; first / host != last / host)
        return fmt::format("rank {} is on another host than rank {} (--ranks-per-host {})", last,
                           first, host);
    return "";
  });
}

// The machine as the run's ranks use it, and what planning has to know of it.
AdviseTarget TargetOf(const Config& config, int world, const Machine& given) {
  if (config.execution.backend != ExecutionConfig::Backend::kCuda)
    return {given, {Backend::kCpu, ScratchBytes(world), 0}};
  // What `auto` finds is not known here: the most that either takes.
  using PeerMemory = ExecutionConfig::PeerMemory;
  const PeerMemory peers = config.execution.peer_memory;
  const Machine machine =
      peers == PeerMemory::kOff
          ? given
          : given.OverPeerMemory(peers == PeerMemory::kAuto || config.parallel.replicate > 1);
  return {machine,
          {Backend::kCuda, 0, machine.ArenaBytes(world, MeshOf(config, world).Size(kCopyAxes))}};
}

StreamJoin JoinOf(const Config& config) {
  return GraphInForce(config) == GraphMode::kMicrobatch ? StreamJoin::kEveryEntry
                                                        : StreamJoin::kStepEnd;
}

nlohmann::json AdviceJson(const Advice& advice, const Machine& machine, int world) {
  nlohmann::json plans = nlohmann::json::array();
  for (const AdvisedPlan& plan : advice.best)
    plans.push_back({{"choices", plan.choices},
                     {"arena_bytes", plan.arena_bytes},
                     {"limit_bytes", plan.limit_bytes},
                     {"wire_bytes", plan.wire_bytes},
                     {"step_s", plan.seconds},
                     {"exposed_communication_s", plan.exposed}});
  return {{"world", world},
          {"machine", machine.name},
          {"measured", machine.measured},
          {"tokens_per_step", advice.tokens_per_step},
          {"drafted", advice.drafted},
          {"planned", advice.planned},
          {"best", plans}};
}

int AdviseOn(const Config& config, const Machine& given, const PlanArguments& arguments) {
  const Advice advice = Advise(
      {config, arguments.world,
       [&](const Config& with) { return TargetOf(with, arguments.world, given); }, JoinOf(config)});
  if (arguments.json) {
    std::cout << DumpJson(AdviceJson(advice, given, arguments.world)) << std::endl;
    return 0;
  }
  std::cout << fmt::format(
      "The fastest of {} plans for {} ranks of {} at {} tokens per step, by simulation{}\n\n",
      advice.drafted, arguments.world, given.name, advice.tokens_per_step,
      given.measured.empty() ? " at best (no measured machine file: doctor --measure)" : "");
  std::cout << fmt::format("  {:>10}{:>12}{:>12}{:>12}  {}\n", "step", "exposed", "arena", "wire",
                           "choices");
  for (const AdvisedPlan& plan : advice.best)
    std::cout << fmt::format("  {:>10}{:>12}{:>12}{:>12}  {}\n", SecondsText(plan.seconds),
                             SecondsText(plan.exposed), BytesText(plan.arena_bytes),
                             BytesText(plan.wire_bytes), plan.choices);
  return 0;
}

}  // namespace

int PlanVerb(const PlanArguments& arguments) {
  if (arguments.pool_only) return PoolOnly(arguments);
  const LoadedConfig loaded =
      LoadRunConfig(arguments.config.files, arguments.config.sets,
                    ConfigContext{.world = arguments.world, .has_cuda = true});
  SayNotes(loaded);
  const Machine given = WithLinks(
      NamedMachine(arguments.machine),
      {arguments.ranks_per_host, arguments.link_gbs * 1e9, arguments.host_link_gbs * 1e9});
  const bool cpu = loaded.config.execution.backend != ExecutionConfig::Backend::kCuda;
  if (!cpu && loaded.config.execution.peer_memory == ExecutionConfig::PeerMemory::kOn)
    RequirePeersOnOneHost(loaded.config, arguments.world, given);
  if (arguments.advise) return AdviseOn(loaded.config, given, arguments);
  const auto [machine, traits] = TargetOf(loaded.config, arguments.world, given);
  const AssembledRun run =
      Assemble(loaded.config, arguments.world, traits, {"train", "eval", "generate"});
  const StepPlan& plan = run.plans.Of("train");
  if (arguments.text) {
    std::cout << ToString(plan);
    return 0;
  }
  const StreamJoin join = JoinOf(loaded.config);
  const ReportInput input{
      run.spec,
      run.layout,
      run.options,
      plan,
      run.flops,
      machine,
      join,
      std::max(run.plans.Of("eval").arena_bytes, run.plans.Of("generate").arena_bytes),
      run.recompute};
  const PlanReport report = MakePlanReport(input);
  if (!arguments.html.empty())
    WriteFileAtomically(FileSystem::Posix(), arguments.html, PlanHtml(input, report));
  if (!arguments.trace.empty())
    WriteFileAtomically(FileSystem::Posix(), arguments.trace, PlanTrace(input));
  std::cout << (arguments.json ? DumpJson(PlanReportJson(report)) + "\n" : PlanReportText(report));
  return 0;
}

}  // namespace millrace
