// millrace compare: two runs side by side: from which step on they differ, by how much, and what
// was different when they were made.
#include <iostream>

#include "runtime/api/backend.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/record/compare_runs.h"
#include "runtime/record/run_folder.h"
#include "tools/cli/runs/comparison.h"
#include "tools/cli/verbs.h"

namespace millrace {
namespace {

constexpr int kDiffer = 1;  // exit code

// The stages of the run's last call, planned again here; those whose hash is not the recorded one
// are left out: this version of the program plans otherwise than the one that trained.
std::map<std::string, std::string> PlanAgain(const RecordedRun& run) {
  std::map<std::string, std::string> texts;
  if (run.history.empty()) return texts;
  const RecordedCall& call = run.history.back();
  try {
    const Config config = ConfigOf(call);
    const auto world = static_cast<int>(call.world);
    const BackendTraits traits =
        TraitsOf(call.backend == "cuda" ? Backend::kCuda : Backend::kCpu, world);
    const AssembledRun planned = Assemble(config, world, traits, {"train"});
    for (const PlanStage& stage : PlanStages(config, planned)) {
      const auto recorded = call.plan_stages.find(stage.name);
      if (recorded != call.plan_stages.end() && recorded->second == stage.Hash())
        texts[stage.name] = stage.text;
    }
  } catch (const Error&) {
    // Another version's keys or models: the hashes have said that the stages
    // differ, no more can be shown.
  }
  return texts;
}

}  // namespace

int CompareVerb(const CompareArguments& arguments) {
  ComparedSide a{arguments.a, ReadRunFolder(arguments.a), {}},
      b{arguments.b, ReadRunFolder(arguments.b), {}};
  const RunComparison c = CompareRuns(a.run, b.run);
  if (!c.stages.empty()) {
    a.stage_texts = PlanAgain(a.run);
    b.stage_texts = PlanAgain(b.run);
  }
  if (arguments.json)
    std::cout << DumpJson(ComparisonJson(c, a, b), {.replace = true}) << std::endl;
  else
    std::cout << ComparisonText(c, a, b) << std::flush;
  return c.same() ? 0 : kDiffer;
}

}  // namespace millrace
