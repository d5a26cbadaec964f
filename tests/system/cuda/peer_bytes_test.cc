// What the communicators count beside what peers' kernels have counted while they moved it, over
// 100 steps. The build says whether kernels count: --define=count_peer_bytes=true.
#include <catch2/catch.hpp>
#include <cstdio>

#include "comm/peer/peer_gather.h"
#include "comm/peer/peer_reduce.h"
#include "tests/system/options.h"
#include "third_party/catch2/session.h"

namespace millrace::test {
namespace {

constexpr int64_t kSteps = 100;

struct Counted {
  int64_t stored = 0, loaded = 0;     // by this rank's kernels
  int64_t gathered = 0, reduced = 0;  // by its communicators, without the table of statistics
  int64_t launches = 0;               // of graphs
};

// Bytes of `steps` steps of one rank, behind a first one that also runs the prologue.
Counted CountSteps(RankContext& rank, const Trial& trial) {
  const auto stored = [] { return PeerBytesStored().value(); };
  const auto loaded = [] { return PeerBytesLoaded().value(); };
  rank.engine.InitWeights(static_cast<uint64_t>(trial.config.train.seed));
  StepOn(rank, trial.config, 0);
  const StepCounters before = rank.engine.counters();
  const int64_t stored_before = stored(), loaded_before = loaded();
  for (int64_t step = 1; step <= kSteps; ++step) StepOn(rank, trial.config, step);
  const StepCounters counters = rank.engine.counters();
  // The table of statistics is gathered over all ranks by NCCL: a sum of squares and a count of bad
  // values per flat parameter, and the loss.
  const int64_t flats = static_cast<int64_t>(rank.run.layout.flats.size());
  const int64_t statistics = kSteps * (rank.world - 1) * (2 * flats + 1) * 8;
  return {stored() - stored_before, loaded() - loaded_before,
          counters.comm.gathered_bytes - before.comm.gathered_bytes - statistics,
          counters.comm.reduced_bytes - before.comm.reduced_bytes,
          counters.graph_launches - before.graph_launches};
}

void CheckWorld(int world) {
  if (!HaveDevices(world)) return;
  if (!PeerBytesStored().has_value()) {
    SkipCase("needs a build with --define=count_peer_bytes=true, whose kernels count");
    return;
  }
  for (const auto graph : {ExecutionConfig::Graph::kStep, ExecutionConfig::Graph::kOff})
    for (const auto precision : {Precision::kFp32, Precision::kBf16All}) {
      Base base = MakeBase(ModelConfig::Family::kLlama, false, precision, world, 2);
      base.trial.config.execution.graph = graph;
      base.trial.config.sharding.grad_sync = ShardingConfig::GradSync::kEvery;
      base.trial.config.train.steps = kSteps + 1;
      std::vector<Counted> ranks(static_cast<size_t>(world));
      RunEngines(base.trial, [&](RankContext& rank) {
        ranks[static_cast<size_t>(rank.rank)] = CountSteps(rank, base.trial);
      });
      for (int r = 0; r < world; ++r) {
        const Counted& c = ranks[static_cast<size_t>(r)];
        INFO(base.name << ", rank " << r);
        CHECK(c.stored == c.gathered);
        CHECK(c.loaded == c.reduced);
        CHECK(c.gathered > 0);
        CHECK(c.reduced > 0);
        CHECK(c.launches == (graph == ExecutionConfig::Graph::kStep ? kSteps : 0));
        std::printf("%s, rank %d, %s: stored %lld counted %lld, loaded %lld counted %lld\n",
                    base.name.c_str(), r, c.launches > 0 ? "replayed" : "eager",
                    static_cast<long long>(c.stored), static_cast<long long>(c.gathered),
                    static_cast<long long>(c.loaded), static_cast<long long>(c.reduced));
      }
    }
}

TEST_CASE("two ranks: kernels move the bytes that the communicators count") { CheckWorld(2); }
TEST_CASE("four ranks: kernels move the bytes that the communicators count") { CheckWorld(4); }

}  // namespace
}  // namespace millrace::test
