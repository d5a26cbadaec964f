// A recorded step in Graphviz's language: the list with the plan's edges where nothing was
// captured, the device's own graph where something was.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "comm/local/local_world.h"
#include "comm/local/run_ranks.h"
#include "kernels/cpu/cpu_kernels.h"
#include "runtime/exec/agreement/plan_comms.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/recorded_step.h"
#include "tests/support/capturing_device.h"
#include "tests/support/engine_case.h"

namespace millrace::test {
namespace {

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

size_t Count(const std::string& text, const std::string& word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

// What rank 0 has after `steps` steps on a device that captures from the second step on.
void WriteAfter(const PlanCase& c, GraphMode mode, int steps, const std::string& path) {
  const StepPlan plan = PlanOf(c);
  LocalWorld world(c.mesh.world());
  RunRanks(world, [&](CommFactory& factory) {
    CommSet comms(factory, c.mesh, CommSharing::kSeparate, CommSpecsOf({&plan}));
    const std::unique_ptr<Device> device = MakeCapturingDevice();
    EngineOptions options;
    options.graph = mode;
    Engine engine({device.get(), &CpuKernels(), &comms}, LayoutOf(c), {StatesOf(c), {plan}},
                  options);
    engine.InitWeights(1234);
    for (int step = 0; step < steps; ++step) TrainStep(engine, c, factory.rank(), step);
    if (factory.rank() == 0) engine.recorded_step()->WriteDot(path);
  });
}

}  // namespace

TEST_CASE("a recorded step is written with every op and every edge of its plan") {
  PlanCase c;
  c.mesh = {1, 2};
  c.options.comm_scratch_bytes = 1 << 21;
  c.options.accumulate = 2;
  const StepPlan plan = PlanOf(c);
  size_t ops = 0, edges = 0;
  for (const Entry& entry : plan.schedule) {
    ops += plan.bodies[static_cast<size_t>(entry.body)].ops.size();
    edges += entry.edges.size();
  }
  REQUIRE(edges > 0);
  const std::string folder = std::filesystem::temp_directory_path() / "millrace_step_dot_test";
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/step.dot";
  WriteAfter(c, GraphMode::kStep, 1, path);
  const std::string text = TextOf(path);
  CHECK(Count(text, "[label=") == ops);
  CHECK(Count(text, "[style=dashed]") == edges);
  CHECK(Count(text, "\\ngather\"") > 0);

  // From the second step on there is a captured graph: the device says what is in it.
  WriteAfter(c, GraphMode::kStep, 2, path);
  CHECK(TextOf(path) == "digraph spent {}\n");

  // A graph per body.
  WriteAfter(c, GraphMode::kMicrobatch, 1, path);
  size_t split = 0;
  for (size_t i = 0; i < plan.schedule.size(); ++i)
    split += Count(TextOf(folder + "/step." + std::to_string(i) + ".dot"), "[label=");
  CHECK(split == ops);
  std::filesystem::remove_all(folder);
  CHECK_THROWS_WITH(WriteAfter(c, GraphMode::kStep, 1, path),
                    Catch::Contains(path) && Catch::Contains("not written"));
}

}  // namespace millrace::test
