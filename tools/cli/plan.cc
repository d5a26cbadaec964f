// millrace plan: what a run will need and how long it will take, with no GPU and no MPI.
#include <fmt/core.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "comm/host_collectives.h"
#include "runtime/api/peer_decision.h"
#include "runtime/base/counted.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/mesh.h"
#include "runtime/data/file_system.h"
#include "runtime/picture/text.h"
#include "runtime/plan/cost/communicators.h"
#include "runtime/plan/cost/machine_file.h"
#include "runtime/plan/report/plan_html.h"
#include "runtime/plan/report/plan_json.h"
#include "runtime/plan/report/plan_report.h"
#include "runtime/plan/report/plan_text.h"
#include "runtime/plan/report/plan_trace.h"
#include "runtime/plan/schedule/allocator_table.h"
#include "runtime/run/advise.h"
#include "runtime/run/assemble.h"
#include "runtime/run/huggingface/exchange.h"
#include "tools/cli/command.h"

namespace millrace {
namespace {

nlohmann::json AllocatorsJson(const AllocatorTable& table) {
  const auto figures = [](const AllocatorBytes& bytes) {
    return nlohmann::json{{"parameter_pool_bytes", bytes.parameters},
                          {"gradient_pool_bytes", bytes.gradients},
                          {"arena_bytes", bytes.arena}};
  };
  nlohmann::json allocators = nlohmann::json::object();
  for (const AllocatorRow& row : table.rows)
    allocators[std::string(Name(row.kind))] = figures(row.bytes);
  return {{"lower_bound", figures(table.lower_bound)}, {"allocators", std::move(allocators)}};
}

std::string BytesOrDash(int64_t bytes) { return bytes == 0 ? "-" : BytesText(bytes); }

void PrintAllocators(const AllocatorTable& table) {
  const auto row = [&](std::string_view name, const AllocatorBytes& bytes) {
    std::cout << fmt::format(
        "  {:<14}{:>14}{:>14}{:>14}{:>11.3f}\n", name, BytesOrDash(bytes.parameters),
        BytesOrDash(bytes.gradients), BytesText(bytes.arena),
        static_cast<double>(bytes.arena) / static_cast<double>(table.lower_bound.arena));
  };
  std::cout
      << "Bytes of one rank by memory.allocator: buckets of parameters and of gradients, placed\n"
         "by themselves, and the plan's arena\n\n";
  std::cout << fmt::format("  {:<14}{:>14}{:>14}{:>14}{:>11}\n", "allocator", "parameters",
                           "gradients", "arena", "to bound");
  row("lower bound", table.lower_bound);
  for (const AllocatorRow& each : table.rows) row(Name(each.kind), each.bytes);
}

int Allocators(const Config& config, const AssembledRun& run, bool as_json) {
  const AllocatorTable table = CompareAllocators(config, run);
  if (as_json)
    std::cout << DumpJson(AllocatorsJson(table)) << std::endl;
  else
    PrintAllocators(table);
  return 0;
}

// Of the plan `name`. Error(kConfig) with the names of all: there is no such.
void PrintText(const RunPlans& plans, const std::string& name) {
  const StepPlan* const plan = plans.Find(name);
  std::string names;
  for (const StepPlan& each : plans.plans) names += (names.empty() ? "" : ", ") + each.name;
  MR_REQUIRE(ErrorCode::kConfig, plan != nullptr, "--plan is {}; allowed are {}", name, names);
  std::cout << ToString(*plan);
}

// `on` where a copy of the parameters is on several hosts, or on CPUs, is refused, as by `train`.
void RequirePeersOnOneHost(const Config& config, int world, const Machine& machine) {
  const Mesh mesh = MeshOf(config, world);
  const int copy = mesh.Size(kCopyAxes);
  const Backend backend =
      config.execution.backend == ExecutionConfig::Backend::kCuda ? Backend::kCuda : Backend::kCpu;
  DecidePeerMemory(config.execution.peer_memory, backend, mesh, [&]() -> std::string {
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
      peers == PeerMemory::kOff ? given : given.OverPeerMemory(peers == PeerMemory::kAuto);
  return {machine,
          {Backend::kCuda, 0, ArenaBytes(MeshOf(config, world), ExchangeNeedsOf(config), machine)}};
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
          {"considered", advice.considered},
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
      "The fastest of {} plans for {} of {} at {} tokens per step, by simulation{}\n\n",
      advice.considered, Counted(arguments.world, "rank"), given.name, advice.tokens_per_step,
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
  std::optional<Machine> asked_machine;
  if (!arguments.machine.empty()) asked_machine = NamedMachine(arguments.machine);
  // `auto` is what the machine has, and without one CPUs.
  const bool has_gpus = asked_machine && asked_machine->device_bytes > 0;
  LoadedConfig loaded = LoadRunConfig(arguments.config.files, arguments.config.sets,
                                      {.world = arguments.world,
                                       .has_cuda = true,
                                       .auto_is_cpu = !has_gpus,
                                       .auto_is_cuda = has_gpus});
  using Wanted = ExecutionConfig::Backend;
  Wanted& backend = loaded.config.execution.backend;
  if (backend == Wanted::kAuto && has_gpus) backend = Wanted::kCuda;
  const Machine given = WithLinks(
      asked_machine ? *asked_machine : NamedMachine(backend == Wanted::kCuda ? "h100" : "cpu"),
      {arguments.ranks_per_host, arguments.link_gbs * 1e9, arguments.host_link_gbs * 1e9});
  if (backend == Wanted::kAuto && !asked_machine)
    loaded.notes.emplace_back(
        "execution.backend = auto: planned for CPUs; --machine h100 or h200, or a GPU machine's "
        "file, plans for GPUs");
  if (arguments.advise && loaded.config.model.BalancedGate())  // a page of one plan says it itself
    loaded.notes.push_back(
        "model.moe.gate=balanced: step times are those of even loads, which no router has");
  SayNotes(loaded);
  if (loaded.config.execution.peer_memory == ExecutionConfig::PeerMemory::kOn)
    RequirePeersOnOneHost(loaded.config, arguments.world, given);
  if (arguments.advise) return AdviseOn(loaded.config, given, arguments);
  const auto [machine, traits] = TargetOf(loaded.config, arguments.world, given);
  PlanSelection selection = {"train", "eval", "generate"};
  if (std::find(selection.begin(), selection.end(), arguments.plan) == selection.end())
    selection.emplace_back("inference");
  const AssembledRun run = Assemble(loaded.config, arguments.world, traits, selection);
  if (arguments.allocators) return Allocators(loaded.config, run, arguments.json);
  const StepPlan& plan = run.plans.Of("train");
  if (arguments.text) {
    PrintText(run.plans, arguments.plan);
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
