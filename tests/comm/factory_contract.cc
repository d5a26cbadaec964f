// The factory's half of tests/comm/communicator_contract.h.
#include <fmt/ranges.h>

#include <numeric>

#include "comm/comm_set.h"
#include "comm/host_collectives.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/base/error.h"
#include "tests/comm/communicator_contract.h"
#include "tests/comm/rank_data.h"

namespace millrace::testing {
namespace {

std::vector<int> Everyone(const CommFactory& factory) {
  std::vector<int> ranks(static_cast<size_t>(factory.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// The world ranks behind a communicator, in its own rank order.
std::vector<int> Members(Communicator& comm, int world_rank) {
  std::vector<int> members;
  for (const std::string& member : comm.HostAllGather(std::to_string(world_rank)))
    members.push_back(std::stoi(member));
  return members;
}

void ExpectMembers(Report& report, const char* what, Communicator& comm, int world_rank,
                   const std::vector<int>& expected) {
  const std::vector<int> members = Members(comm, world_rank);
  report.Expect(members == expected, "{}: ranks {} instead of {}", what, members, expected);
  const bool placed =
      comm.world_size() == static_cast<int>(expected.size()) && expected[comm.rank()] == world_rank;
  report.Expect(placed, "{}: world rank {} says that it is {} of {}", what, world_rank, comm.rank(),
                comm.world_size());
}

void Groups(CommFactory& factory, Report& report) {
  const int rank = factory.rank(), world = factory.world_size();
  const std::unique_ptr<Communicator> all = factory.Make(Everyone(factory), "all");
  ExpectMembers(report, "all", *all, rank, Everyone(factory));
  std::vector<int> parity, upper;
  for (int r = rank % 2; r < world; r += 2) parity.push_back(r);
  ExpectMembers(report, "parity", *factory.Make(parity, "parity"), rank, parity);
  for (int r = 1; r < world; ++r) upper.push_back(r);
  if (rank >= 1)
    ExpectMembers(report, "without rank 0", *factory.Make(upper, "upper"), rank, upper);
  ExpectMembers(report, "alone", *factory.Make({rank}, "alone"), rank, {rank});
}

void SameGroupTwice(CommFactory& factory, Report& report) {
  const std::unique_ptr<Communicator> first = factory.Make(Everyone(factory), "twice");
  const std::unique_ptr<Communicator> second = factory.Make(Everyone(factory), "twice");
  const std::unique_ptr<Stream> stream = MakeHostDevice()->MakeStream(StreamRole::kCompute);
  std::vector<float> full(static_cast<size_t>(factory.world_size()));
  full[factory.rank()] = static_cast<float>(factory.rank());
  second->AllGather(View(full, factory.rank(), 1), View(full), {}, *stream);
  report.Expect(first->counters().all_gathers == 0 && second->counters().all_gathers == 1,
                "counters are shared: {} {}", first->counters().all_gathers,
                second->counters().all_gathers);
  first->Barrier();
  report.Expect(full.back() == static_cast<float>(factory.world_size() - 1), "gathered {}",
                full.back());
}

void WrongGroups(CommFactory& factory, Report& report) {
  const int rank = factory.rank(), world = factory.world_size();
  const auto refused = [&](const char* what, const std::vector<int>& ranks) {
    try {
      factory.Make(ranks, "wrong group");
      report.Expect(false, "{}: accepted", what);
    } catch (const Error& error) {
      report.Expect(error.code() == ErrorCode::kInvalidArgument, "{}: code {}", what,
                    Name(error.code()));
      report.Expect(std::string(error.what()).find("'wrong group'") != std::string::npos,
                    "{}: no label in {}", what, error.what());
    }
  };
  refused("empty", {});
  refused("outside the world", {rank, world});
  refused("negative", {-1, rank});
  refused("twice the same", {rank, rank});
  if (world > 1) refused("without this rank", {(rank + 1) % world});
  if (rank > 0) refused("descending", {rank, 0});
  ExpectMembers(report, "after refusals", *factory.Make(Everyone(factory), "right group"), rank,
                Everyone(factory));
}

constexpr CommKey kShardGather{Axis::kShard, StreamId::kGather},
    kShardReduce{Axis::kShard, StreamId::kReduce},
    kReplicateReduce{Axis::kReplicate, StreamId::kReduce},
    kStatistics{AxisSet::All(), StreamId::kReduce};

// As plans of a replicate x shard mesh have them, in no order.
std::vector<CommSpec> TrainingSpecs() {
  const auto only = [](bool gathers, bool scatters, bool reduces) {
    return CommUses{gathers, scatters, reduces, false};
  };
  return {{kReplicateReduce, only(false, false, true)},
          {kStatistics, only(true, false, false)},
          {kShardReduce, only(false, true, false)},
          {kShardGather, only(true, false, false)}};
}

void Meshes(CommFactory& factory, Report& report) {
  const int rank = factory.rank(), world = factory.world_size();
  for (int shard = 1; shard <= world; ++shard) {
    if (world % shard != 0) continue;
    const CommSet set(factory, Mesh(world / shard, shard), CommSharing::kSeparate, TrainingSpecs());
    std::vector<int> neighbours, strided;
    for (int r = 0; r < world; ++r) {
      if (r / shard == rank / shard) neighbours.push_back(r);
      if (r % shard == rank % shard) strided.push_back(r);
    }
    ExpectMembers(report, "world", set.world(), rank, Everyone(factory));
    ExpectMembers(report, "shard gather", set.Of(kShardGather), rank, neighbours);
    ExpectMembers(report, "shard reduce", set.Of(kShardReduce), rank, neighbours);
    ExpectMembers(report, "replicate reduce", set.Of(kReplicateReduce), rank, strided);
    report.Expect(&set.Of(kShardGather) != &set.Of(kShardReduce),
                  "gather and reduce share a communicator");
    report.Expect(&set.Of(kStatistics) == &set.world(), "the statistics are not the world's");
    std::string names;
    for (const CommSet::Member& member : set.members()) {
      names += member.name + ", ";
      report.Expect(member.ranks[static_cast<size_t>(member.comm->rank())] == rank,
                    "{}: ranks of the group", member.name);
    }
    report.Expect(names == "world, shard gather, replicate reduce, shard reduce, ", "{}", names);
  }
  try {
    const CommSet set(factory, Mesh(2, world), CommSharing::kSeparate, {});
    report.Expect(false, "a mesh of twice the world was accepted");
  } catch (const Error& error) {
    report.Expect(error.code() == ErrorCode::kInvalidArgument, "wrong mesh: code {}",
                  Name(error.code()));
  }
}

// Reduce-scatter in the shard group, all-reduce over the replicas, all-gather in the shard group:
// the sum over the world, here of terms that are exact in any order of additions.
std::vector<float> WorldSum(CommFactory& factory, const Mesh& mesh, CommSharing sharing,
                            CommCounters* counters) {
  const CommSet set(factory, mesh, sharing, TrainingSpecs());
  const std::unique_ptr<Stream> stream = MakeHostDevice()->MakeStream(StreamRole::kCompute);
  std::vector<double> scratch(static_cast<size_t>(ScratchBytes(factory.world_size()) / 8));
  const TensorView scratch_view = scratch.empty() ? TensorView{} : View(scratch);
  const int64_t n = 420;
  std::vector<float> full(static_cast<size_t>(n * mesh.Size(Axis::kShard))),
      shard(static_cast<size_t>(n));
  for (int64_t i = 0; i < n * mesh.Size(Axis::kShard); ++i)
    full[i] = static_cast<float>((1 << factory.rank()) * (i % 4099));
  set.Of(kShardReduce).ReduceScatterSum(View(full), View(shard), scratch_view, *stream);
  set.Of(kReplicateReduce).AllReduceSum(View(shard), scratch_view, *stream);
  set.Of(kShardGather).AllGather(View(shard), View(full), {}, *stream);
  *counters = set.Counters();
  return full;
}

void SharedOrSeparate(CommFactory& factory, Report& report) {
  const int world = factory.world_size();
  for (int shard = 1; shard <= world; ++shard) {
    if (world % shard != 0) continue;
    const int replicate = world / shard;
    const Mesh mesh(replicate, shard);
    CommCounters separate, shared;
    const std::vector<float> a = WorldSum(factory, mesh, CommSharing::kSeparate, &separate);
    const std::vector<float> b = WorldSum(factory, mesh, CommSharing::kShared, &shared);
    report.Expect(a == b, "{} x {}: shared communicators give other sums", replicate, shard);
    report.Expect(separate == shared, "{} x {}: shared communicators count otherwise", replicate,
                  shard);
    const int64_t slice = 420 / replicate;
    const CommCounters expected = {.all_gathers = 1,
                                   .reduce_scatters = 1,
                                   .all_reduces = 1,
                                   .gathered_bytes = (shard - 1) * 1680,
                                   .reduced_bytes = (shard - 1) * 1680,
                                   .all_reduced_bytes = 2 * (replicate - 1) * slice * 4};
    report.Expect(separate == expected, "{} x {}: bytes {} {} {}", replicate, shard,
                  separate.gathered_bytes, separate.reduced_bytes, separate.all_reduced_bytes);
    for (int64_t i = 0; i < 420 * shard; ++i)
      report.Expect(a[i] == static_cast<float>(((1 << world) - 1) * (i % 4099)),
                    "{} x {}: sum {} is {}", replicate, shard, i, a[i]);
  }
}

template <class F>
void Refused(Report& report, ErrorCode code, const std::string& words, F&& make) {
  try {
    make();
    report.Expect(false, "accepted, instead of: {}", words);
  } catch (const Error& error) {
    report.Expect(
        error.code() == code && std::string(error.what()).find(words) != std::string::npos,
        "{} instead of {}", error.what(), words);
  }
}

void CalledFor(CommFactory& factory, Report& report) {
  const int world = factory.world_size();
  const Mesh mesh(1, world);
  for (const CommSharing sharing : {CommSharing::kSeparate, CommSharing::kShared}) {
    const CommSet none(factory, mesh, sharing, {});
    report.Expect(none.members().size() == 1 && none.world().world_size() == world, "the world's");
    Refused(report, ErrorCode::kInternal, "no communicator 'shard gather'",
            [&] { none.Of(kShardGather); });
    const CommSet all(factory, mesh, sharing, TrainingSpecs());
    const bool shared = sharing == CommSharing::kShared;
    report.Expect(all.members().size() == (shared ? 3u : 4u), "{} communicators",
                  all.members().size());
    const CommUses& uses = all.members()[all.IndexOf(kShardGather)].uses;
    report.Expect(uses.all_gathers && uses.reduce_scatters == shared && !uses.all_reduces,
                  "uses of 'shard gather'");
  }
  if (world == 1) return;
  std::vector<CommSpec> specs = TrainingSpecs();
  if (factory.rank() == 1) specs.pop_back();
  Refused(report, ErrorCode::kConfig, "but rank 0 for 'shard gather' for all_gather",
          [&] { CommSet(factory, mesh, CommSharing::kSeparate, specs); });
}

}  // namespace

const std::vector<FactoryCase>& FactoryContract() {
  static const std::vector<FactoryCase> cases = {
      {"a group's communicator has the members asked for, in their order", Groups},
      {"two communicators over one group share nothing", SameGroupTwice},
      {"wrong groups are refused by name, and harm no one", WrongGroups},
      {"a mesh's communicators join the neighbours of a replica and the holders of a shard",
       Meshes},
      {"gather and reduce on one communicator or two: the same bits and counts", SharedOrSeparate},
      {"communicators are those that are called for, and the same ones on all ranks", CalledFor},
  };
  return cases;
}

}  // namespace millrace::testing
