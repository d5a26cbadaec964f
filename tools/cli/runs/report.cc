// millrace report: a run's folder as one HTML page, for looking at and for sending.
#include <fmt/core.h>

#include <iostream>
#include <optional>

#include "runtime/api/backend.h"
#include "runtime/base/error.h"
#include "runtime/data/file_system.h"
#include "runtime/picture/text.h"
#include "runtime/plan/cost/machine.h"
#include "runtime/plan/report/plan_picture.h"
#include "runtime/record/report/report_html.h"
#include "runtime/record/report/run_record.h"
#include "runtime/record/run_history.h"
#include "runtime/run/assemble.h"
#include "tools/cli/verbs.h"

namespace millrace {
namespace {

// The one whose title the run's summary names as that of its predictions; else the backend's.
const Machine& MachineOf(const RunRecord& record, bool cuda) {
  if (const auto predicted = record.summary.find("predicted"); predicted != record.summary.end())
    if (const auto title = predicted->find("machine"); title != predicted->end())
      for (const Machine& machine : Machines())
        if (*title == machine.title) return machine;
  return FindMachine(cuda ? "h100" : "cpu");
}

PlannedStep PlannedStepOf(const ReportInput& input) {
  const PlanReport report = MakePlanReport(input);
  const MemoryFigures& memory = report.memory;
  PlannedStep step{report.hash, report.machine.title,    memory.arena, memory.lower_bound,
                   {},          PictureOf(input, report)};
  for (size_t c = 0; c < step.picture.classes.size(); ++c)
    step.classes.push_back({step.picture.classes[c], memory.by_class[c], memory.at_peak[c]});
  return step;
}

// The last call's training plan, if planning it here gives the memory plan that the run recorded.
std::optional<PlannedStep> PlanAgain(const RunRecord& record) {
  const RunHistory& history = record.history;
  if (history.empty()) return std::nullopt;
  const RecordedCall& call = history.back();
  const auto recorded = call.plan_stages.find("memory_plan");
  if (recorded == call.plan_stages.end()) return std::nullopt;
  try {
    const Config config = ConfigOf(call);
    const auto world = static_cast<int>(call.world);
    const bool cuda = call.backend == "cuda";
    const AssembledRun run =
        Assemble(config, world, TraitsOf(cuda ? Backend::kCuda : Backend::kCpu, world), {"train"});
    for (const PlanStage& stage : PlanStages(config, run))
      if (stage.name == recorded->first && stage.Hash() != recorded->second) return std::nullopt;
    const StreamJoin join = GraphInForce(config) == GraphMode::kMicrobatch ? StreamJoin::kEveryEntry
                                                                           : StreamJoin::kStepEnd;
    return PlannedStepOf({run.spec, run.layout, run.options, run.plans.Of("train"), run.flops,
                          MachineOf(record, cuda), join});
  } catch (const Error&) {
    return std::
        nullopt;  // another version's keys or models: the page says that the classes are not known
  }
}

}  // namespace

int ReportVerb(const ReportArguments& arguments) {
  const RunRecord record = ReadRunRecord(arguments.run_dir);
  const std::string page = ReportHtml(record, PlanAgain(record));
  const std::string path =
      arguments.out.empty() ? arguments.run_dir + "/report.html" : arguments.out;
  WriteFileAtomically(FileSystem::Posix(), path, page);
  std::cout << fmt::format("{}: {} steps, {}\n", path, record.rows.size(),
                           BytesText(static_cast<int64_t>(page.size())));
  return 0;
}

}  // namespace millrace
