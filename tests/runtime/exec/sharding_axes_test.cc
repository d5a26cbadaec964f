// Axes that split nothing shard what the shard axis shards: the same bits, trained for real.
#include <catch2/catch.hpp>
#include <map>

#include "runtime/exec/logical_tensors.h"
#include "tests/support/engine_case.h"

namespace millrace::test {
namespace {

TEST_CASE("a mesh of several sharding axes trains the bits of one of as many ranks", "[exec]") {
  PlanCase c;
  c.precision = Mixed(DType::kF32, DType::kF32, DType::kBF16);
  c.options.accumulate = 2;
  c.options.comm_scratch_bytes = 1 << 21;
  c.options.grad_sync = GENERATE(GradSync::kLast, GradSync::kEvery);
  const int replicate = GENERATE(1, 2);
  PlanCase several = c;
  c.mesh = Mesh(replicate, 4);
  several.mesh = Mesh(replicate, 2).With(Axis::kExpert, 2);
  const auto hashes = [](const PlanCase& of) {
    std::vector<std::string> ranks(static_cast<size_t>(of.mesh.world()));
    RunEngines(of, {}, [&](Engine& engine, int rank) {
      TrainStep(engine, of, rank, 0);
      ranks[static_cast<size_t>(rank)] = ParamHash(engine) + OptimizerHash(engine);
    });
    return ranks;
  };
  CHECK(TrainedBits(several, {}, 2) == TrainedBits(c, {}, 2));
  const std::vector<std::string> one = hashes(c);
  CHECK(hashes(several) == one);
  CHECK(one == std::vector<std::string>(one.size(), one.front()));
}

}  // namespace
}  // namespace millrace::test
