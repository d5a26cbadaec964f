// Which communicators plans count, and their memory against what was measured.
#include "runtime/plan/cost/communicators.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <utility>

#include "tests/system/axes/split_trial.h"

namespace millrace::test {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;

int64_t MibOf(const PlannedCommunicator& communicator, int channels, const Machine& machine) {
  return NcclBytes(communicator, channels, Mesh(1, 2), machine) / kMib;
}

// comm/README.md: 2 x H200, everything connected when it is made, by max_ctas; and at first use by
// gathers alone, of 16.
TEST_CASE("a communicator takes what was measured, by its channels and its calls", "[plan][cost]") {
  const Machine& h200 = FindMachine("h200");
  const PlannedCommunicator gathers{Axis::kShard, StreamId::kGather},
      sums{Axis::kShard, StreamId::kReduce, true};
  CHECK(MibOf(sums, 16, h200) == 420);
  CHECK(MibOf(sums, 8, h200) == 212);
  CHECK(MibOf(sums, 4, h200) == 108);
  CHECK(std::abs(MibOf(gathers, 16, h200) - 293) <= 1);
  // A ring's memory does not depend on how many ranks it has; a pair per peer does.
  const PlannedCommunicator pieces{Axis::kShard, StreamId::kExchange, false, true};
  const auto of = [&](const PlannedCommunicator& c, int ranks, int per_host) {
    Machine machine = h200;
    machine.ranks_per_host = per_host;
    return NcclBytes(c, 16, Mesh(1, ranks), machine) / kMib;
  };
  CHECK(of(gathers, 8, 8) == of(gathers, 2, 8));
  CHECK(of(pieces, 4, 8) - of(pieces, 2, 8) == 2 * 16 * 12);
  CHECK(of(gathers, 16, 8) - of(gathers, 8, 8) == 16 * (20 - 12));
  // Pairs with ranks of other hosts share one set of buffers.
  CHECK(of(pieces, 16, 8) - of(gathers, 16, 8) == 16 * (7 * 12 + 20));
  CHECK(of(pieces, 64, 8) == of(pieces, 16, 8));
}

// tools/bench/HISTORY.md, Memory of a device: MiB beside the arena.
TEST_CASE("a device holds what was measured beside the arena, within 3 %", "[plan][cost]") {
  struct Row {
    int ranks;
    double arena_gib;
    int64_t measured;
    bool peers;
  };
  for (const Row& row :
       {Row{2, 0.510, 1552, false}, Row{2, 20.212, 1555, false}, Row{2, 48.078, 1559, false},
        Row{4, 0.412, 1553, false}, Row{4, 19.838, 1557, false}, Row{2, 0.555, 1569, false},
        Row{2, 0.555, 967, true}, Row{2, 29.420, 1027, true}, Row{4, 19.939, 1088, true},
        Row{4, 77.284, 1442, true}}) {
    CAPTURE(row.ranks, row.arena_gib, row.peers);
    Machine machine = FindMachine("h200");
    if (row.peers) machine = machine.OverPeerMemory(false);
    const Mesh mesh(1, row.ranks);
    const auto arena = static_cast<int64_t>(row.arena_gib * 1024) * kMib;
    const int64_t planned = BesideArena(MostCommunicators(mesh), mesh, machine, arena) / kMib;
    CHECK(planned >= row.measured);
    CHECK(planned <= row.measured + row.measured * 3 / 100);
  }
}

TEST_CASE("what is counted before there is a plan covers what the plan calls for", "[plan][cost]") {
  const AuxLossKind aux_loss = GENERATE(AuxLossKind::kNone, AuxLossKind::kSwitch,
                                        AuxLossKind::kSequence, AuxLossKind::kPooled);
  for (const auto& [experts, muon] : {std::pair{false, false}, {true, false}, {false, true}})
    for (const SplitShape& shape :
         {SplitShape{.shard = 2}, SplitShape{.replicate = 2, .shard = 2}, SplitShape{.tensor = 2},
          SplitShape{.shard = 2, .tensor = 2}, SplitShape{.replicate = 2, .tensor = 2},
          SplitShape{.shard = 2, .context = 2}, SplitShape{.context = 2, .tensor = 2},
          SplitShape{.expert = 2}, SplitShape{.shard = 2, .expert = 2},
          SplitShape{.tensor = 2, .expert = 2}}) {
      if (shape.expert > 1 && !experts) continue;
      CAPTURE(experts, muon, shape.replicate, shape.shard, shape.context, shape.tensor,
              shape.expert);
      Trial trial = SplitTrial(
          experts ? ModelConfig::Family::kQwen3Moe : ModelConfig::Family::kLlama, shape, 2, 12);
      if (experts) trial.config.model.moe = {.experts = 4, .top_k = 2, .ffn = 13};
      if (experts) trial.config.model.moe.aux_loss = aux_loss;
      if (muon) trial.config.optimizer.name = OptimizerKind::kMuon;
      const AssembledRun run = PlanOf(trial);
      const Mesh& mesh = run.layout.mesh;
      const ExchangeNeeds needs = ExchangeNeedsOf(trial.config);
      const std::vector<PlannedCommunicator> most = MostCommunicators(mesh, needs),
                                             plan = CommunicatorsOf(run.plans.Of("train"), mesh);
      CHECK_FALSE(plan.empty());
      for (const PlannedCommunicator& communicator : plan)
        CHECK(std::any_of(most.begin(), most.end(), [&](const PlannedCommunicator& other) {
          return other.axes == communicator.axes && other.stream == communicator.stream &&
                 other.all_reduces >= communicator.all_reduces &&
                 other.all_to_alls >= communicator.all_to_alls;
        }));
      const Machine& h200 = FindMachine("h200");
      CHECK(BesideArena(plan, mesh, h200, 0) <= BesideArena(most, mesh, h200, 0));
      CHECK(ArenaBytes(mesh, needs, h200) == h200.device_bytes - BesideArena(most, mesh, h200, 0));
    }
}

TEST_CASE("what a device has left for an arena leaves room for the tables of peers' arenas",
          "[plan][cost]") {
  constexpr int64_t kGib = 1024 * kMib;
  const Machine h200 = FindMachine("h200"), peers = h200.OverPeerMemory(false);
  const Mesh mesh(1, 8), four(1, 4), apart(1, 16);
  const auto beside = [](const Mesh& on, const Machine& machine, int64_t arena) {
    return BesideArena(MostCommunicators(on), on, machine, arena);
  };
  const int64_t left = ArenaBytes(mesh, {}, peers);
  CHECK(left + beside(mesh, peers, left) <= peers.device_bytes);
  CHECK(left + beside(mesh, peers, left) > peers.device_bytes - kMib);
  CHECK(beside(four, peers, 10 * kGib) - beside(four, peers, 0) == 3 * 10 * (kGib / 512));
  CHECK(beside(Mesh(1, 1), peers, kGib) == h200.process_bytes);
  // Copies of the parameters over two hosts take NCCL's.
  CHECK(beside(apart, peers, 10 * kGib) == beside(apart, h200, 10 * kGib));
  // A plan that cannot know counts both; sums over replicas are NCCL's in any case.
  CHECK(beside(four, h200.OverPeerMemory(true), 0) > beside(four, h200, 0));
  CHECK(beside(Mesh(2, 4), peers, 0) - beside(four, peers, 0) ==
        NcclBytes({Axis::kReplicate, StreamId::kReduce, true}, kCommunicatorChannels, Mesh(2, 4),
                  peers));
  // All-reduces within a copy are not.
  const PlannedCommunicator sums{Axis::kShard, StreamId::kExchange, true};
  CHECK(BesideArena({sums}, four, peers, 0) - BesideArena({}, four, peers, 0) ==
        peers.peer_communicator_bytes);
}

}  // namespace
}  // namespace millrace::test
