#include "runtime/run/advise.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/plan/cost/program_floor.h"

namespace millrace {
namespace {

Config Small() {
  Config c;
  c.model.family = ModelFamily::kLlama;
  c.model.layers = 2;
  c.model.d_model = 256;
  c.model.heads = 4;
  c.model.seq_len = 128;
  c.data.kind = DataKind::kSynthetic;
  c.train.micro_batch = 2;
  c.train.accumulate = 2;
  c.precision.compute = PrecisionConfig::Format::kBf16;
  c.precision.grad_wire = PrecisionConfig::Format::kBf16;
  return c;
}

AdviseInput InputOf(const Config& config, int world, const Machine& machine) {
  return {config, world, [machine](const Config&) {
            return AdviseTarget{machine, {Backend::kCuda, 0, 0}};
          }};
}

// Every plan there is, each in full. None is below its floor.
struct Found {
  double seconds = 0;
  int64_t arena = 0;
};
Found Planned(const Config& c, int world, const Machine& machine) {
  const BackendTraits traits{Backend::kCuda, 0, 0};
  const AssembledRun run = Assemble(c, world, traits, {"train"});
  const StepPlan& plan = run.plans.Of("train");
  const Found found{Simulate(plan, plan.schedule, run.layout.mesh, machine).seconds,
                    plan.arena_bytes};
  const auto floor_of = [&](Exchanged exchanged) {
    const Program program = LowerTraining(c, world, traits, exchanged);
    return FloorOf({program, run.layout.mesh, machine, run.options.accumulate, DType::kBF16,
                    run.options.overlap_weight_gradients});
  };
  const ProgramFloor floor = floor_of(Exchanged::kKept);  // of time, and below of bytes
  CAPTURE(ToString(run.layout.mesh), c.train.micro_batch, Name(c.memory.recompute));
  CHECK(floor.seconds > 0);
  CHECK(floor.seconds <= found.seconds * (1 + 1e-9));
  const int64_t bytes = floor_of(Exchanged::kAgain).activation_bytes;
  CHECK(bytes > 0);
  CHECK(bytes < found.arena);
  return found;
}
std::vector<Found> All(const Config& base, int world, const Machine& machine) {
  std::vector<Found> all;
  const int64_t sequences = base.train.GlobalBatch(world);
  for (int replicate = 1; replicate <= world; ++replicate)
    for (int context = 1; context <= world; ++context)
      for (int tensor = 1; tensor <= world; ++tensor)
        for (int64_t micro = 1; micro <= sequences * context * tensor / world; ++micro)
          for (const Reshard reshard :
               {Reshard::kNever, Reshard::kAfterBackward, Reshard::kAfterForward})
            for (const Recompute recompute :
                 {Recompute::kNone, Recompute::kNorms, Recompute::kBlock})
              for (const int64_t prefetch : {1, 2}) {
                if (prefetch > 1 && reshard == Reshard::kNever) continue;
                const int64_t own = sequences * context * tensor / world;
                if (world % (replicate * context * tensor) != 0 || own % micro != 0) continue;
                Config c = base;
                c.parallel.replicate = replicate;
                c.train.micro_batch = micro;
                c.parallel.context = context;
                c.parallel.tensor = tensor;
                c.train.accumulate = own / micro;
                c.sharding.reshard = reshard;
                c.memory.recompute = recompute;
                c.memory.prefetch = prefetch;
                all.push_back(Planned(c, world, machine));
              }
  return all;
}

TEST_CASE("the first advice is as fast as the fastest of all plans that fit", "[run][advise]") {
  const Machine& machine = FindMachine("h200");
  Config config = Small();
  // Beside the compute stream, or on it.
  config.execution.overlap_weight_gradients = GENERATE(true, false);
  const int world = 2;
  const std::vector<Found> all = All(config, world, machine);
  std::vector<int64_t> arenas;
  for (const Found& found : all) arenas.push_back(found.arena);
  std::sort(arenas.begin(), arenas.end());
  // No limit, and two that refuse most.
  for (const int64_t limit : {int64_t{0}, arenas[arenas.size() / 3], arenas[3]}) {
    CAPTURE(limit);
    config.memory.budget_gib.reset();
    if (limit > 0) config.memory.budget_gib = static_cast<double>(limit) / (int64_t{1} << 30);
    double fastest = std::numeric_limits<double>::infinity();
    for (const Found& found : all)
      if (limit == 0 || found.arena <= limit) fastest = std::min(fastest, found.seconds);
    const Advice advice = Advise(InputOf(config, world, machine));
    REQUIRE_FALSE(advice.best.empty());
    CHECK(advice.best.front().seconds <= fastest * 1.001);
    CHECK(advice.tokens_per_step == 2 * 4 * 128);
    CHECK(advice.planned <= advice.drafted * 2);
    CHECK(advice.drafted <= advice.considered);
    CHECK((limit > 0 || advice.drafted < advice.considered / 2));
    for (size_t i = 0; i < advice.best.size(); ++i) {
      const AdvisedPlan& plan = advice.best[i];
      CAPTURE(plan.choices);
      CHECK((limit == 0 || plan.arena_bytes <= limit));
      CHECK((i == 0 || advice.best[i - 1].seconds <= plan.seconds));
      for (size_t j = 0; j < i; ++j)  // each a step of its own
        CHECK((advice.best[j].seconds != plan.seconds || advice.best[j].exposed != plan.exposed ||
               advice.best[j].arena_bytes != plan.arena_bytes));
      CHECK(plan.config.train.GlobalBatch(plan.config.parallel.DataRanks(world)) == 8);
      CHECK(plan.mesh.world() == world);
      CHECK(plan.exposed <= plan.seconds);
      // It is the plan that its choices give.
      const AssembledRun run = Assemble(plan.config, world, {Backend::kCuda, 0, 0}, {"train"});
      CHECK(run.plans.Of("train").arena_bytes == plan.arena_bytes);
    }
  }
}

// Of one sequence, which two ranks can share by its rows alone: three heads cannot be halved.
TEST_CASE("context is searched, where two chunks a rank divide the sequence", "[run][advise]") {
  Config config = Small();
  config.model.heads = 3;
  config.model.d_model = 192;
  config.model.ffn = 513;
  config.train.micro_batch = 1;
  config.train.accumulate = 1;
  config.parallel.context = 2;
  const Advice advice = Advise(InputOf(config, 2, FindMachine("h200")));
  CHECK(advice.tokens_per_step == 128);
  CHECK(advice.considered == 9);
  REQUIRE_FALSE(advice.best.empty());
  for (const AdvisedPlan& plan : advice.best) {
    CHECK(plan.mesh.Size(Axis::kContext) == 2);
    CHECK_THAT(plan.choices, Catch::Contains("parallel.context=2 "));
  }
  config.model.seq_len = 126;
  try {
    Advise(InputOf(config, 2, FindMachine("h200")));
    FAIL("126 tokens were cut into four");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kConfig);
    CHECK_THAT(error.what(), Catch::Contains("1 sequences a step cannot be divided"));
  }
}

TEST_CASE("where nothing fits, the closest plan is named", "[run][advise]") {
  Config config = Small();
  config.memory.budget_gib = 0.001;
  try {
    Advise(InputOf(config, 2, FindMachine("h200")));
    FAIL("something fits");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kDoesNotFit);
    // All that makes a plan smaller is in it.
    CHECK_THAT(error.what(), Catch::Contains("nothing fits: the closest of ") &&
                                 Catch::Contains("1073741 are allowed: parallel.replicate=1 ") &&
                                 Catch::Contains("train.micro_batch=1 ") &&
                                 Catch::Contains("memory.recompute=block"));
  }
}

TEST_CASE("slow networks make copies of a host each win, fast ones do not matter",
          "[run][advise]") {
  Config config = Small();
  config.sharding.reshard = Reshard::kAfterForward;
  Machine machine = FindMachine("h200");
  machine.host_link = 1e8;
  machine.host_hop = 1e-3;
  const Advice slow = Advise(InputOf(config, 32, machine));
  CHECK(slow.best.front().mesh.Size(Axis::kShard) <= machine.ranks_per_host);
}

}  // namespace
}  // namespace millrace
