// comm/local: the contract on threads, and what only in-process ranks can show.
#include "comm/local/local_world.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "comm/local/run_ranks.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/base/error.h"
#include "tests/comm/communicator_contract.h"
#include "tests/comm/rank_data.h"

namespace millrace::testing {
namespace {

using std::chrono::milliseconds;

HostCommOptions SmallChunks() {
  return {.timeout = std::chrono::seconds(60), .chunk_bytes = kContractChunkBytes};
}
HostCommOptions Impatient() {
  return {.timeout = milliseconds(1000), .chunk_bytes = kContractChunkBytes};
}

std::vector<int> Everyone(int world) {
  std::vector<int> ranks(static_cast<size_t>(world));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// What `fn` throws: "<code>: <text>", or "nothing".
template <typename Fn>
std::string Thrown(Fn fn) {
  try {
    fn();
    return "nothing";
  } catch (const Error& error) {
    return fmt::format("{}: {}", Name(error.code()), error.what());
  }
}

TEST_CASE("threads as ranks keep the communicator's contract", "[comm][contract]") {
  const int world = GENERATE(range(1, 8));
  for (const ContractCase& contract : CommunicatorContract()) {
    std::vector<Report> reports(static_cast<size_t>(world));
    RunRanks(
        world, [&](Communicator& comm) { contract.run(comm, reports[comm.rank()]); },
        SmallChunks());
    for (int rank = 0; rank < world; ++rank) {
      INFO(contract.name << ": world " << world << ", rank " << rank << ": "
                         << reports[rank].Text());
      CHECK(reports[rank].ok());
    }
  }
}

TEST_CASE("threads as ranks keep the factory's contract", "[comm][contract]") {
  const int world_size = GENERATE(1, 2, 3, 4, 6);
  for (const FactoryCase& contract : FactoryContract()) {
    LocalWorld world(world_size, {.timeout = std::chrono::seconds(60)});
    std::vector<Report> reports(static_cast<size_t>(world_size));
    RunRanks(world, [&](CommFactory& factory) { contract.run(factory, reports[factory.rank()]); });
    for (int rank = 0; rank < world_size; ++rank) {
      INFO(contract.name << ": world " << world_size << ", rank " << rank << ": "
                         << reports[rank].Text());
      CHECK(reports[rank].ok());
    }
  }
}

TEST_CASE("results do not depend on the chunk size", "[comm]") {
  const int world = GENERATE(2, 3, 5);
  std::vector<std::vector<std::string>> digests;  // per chunk size, per rank
  for (const int64_t chunk_bytes : {64, 1024, 262144}) {
    digests.emplace_back(static_cast<size_t>(world));
    RunRanks(
        world,
        [&](Communicator& comm) { digests.back()[comm.rank()] = ResultDigest(comm, chunk_bytes); },
        {.timeout = std::chrono::seconds(60), .chunk_bytes = chunk_bytes});
  }
  REQUIRE(digests[1] == digests[0]);
  REQUIRE(digests[2] == digests[0]);
  REQUIRE(digests[0][0] != digests[0][1]);  // the digest sees the rank's own shard
}

TEST_CASE("the terms of the contract distinguish orders of addition", "[comm]") {
  // Otherwise the bitwise cases would accept any order.
  int differ_f32 = 0, differ_bf16 = 0, differ_f64 = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    differ_f32 += !SameBits(SumOf(float{}, i, 0, 1, 3), SumOf(float{}, i, 2, -1, 3));
    differ_f64 += !SameBits(SumOf(double{}, i, 0, 1, 3), SumOf(double{}, i, 2, -1, 3));
    // Rounding to bf16 hides most orders of f32 additions, but not the rounding after each.
    BFloat16 each = TermAs<BFloat16>(0, i);
    for (int r = 1; r < 3; ++r) each = ToBFloat16(ToFloat(each) + ToFloat(TermAs<BFloat16>(r, i)));
    differ_bf16 += !SameBits(SumOf(BFloat16{}, i, 0, 1, 3), each);
  }
  REQUIRE(differ_f32 > 100);
  REQUIRE(differ_f64 > 100);
  REQUIRE(differ_bf16 > 100);
}

TEST_CASE("abort unblocks a waiting peer with its message, and stays", "[comm]") {
  auto comms = MakeLocalCommunicators(3, SmallChunks());
  auto waiting =
      std::async(std::launch::async, [&] { return Thrown([&] { comms[0]->Barrier(); }); });
  std::this_thread::sleep_for(milliseconds(20));
  comms[1]->Abort("disk on fire");
  comms[2]->Abort("a later reason");
  REQUIRE(waiting.wait_for(std::chrono::seconds(10)) == std::future_status::ready);
  REQUIRE(waiting.get() == "peer_lost: barrier on 'world', rank 0 of 3: aborted: disk on fire");
  REQUIRE(Thrown([&] { comms[1]->HostAllGather("x"); }) ==
          "peer_lost: host_all_gather on 'world', rank 1 of 3: aborted: disk on fire");
}

TEST_CASE("abort reaches every communicator of the world, those made later too", "[comm]") {
  LocalWorld world(2, SmallChunks());
  const auto factory0 = world.Factory(0), factory1 = world.Factory(1);
  const auto gather0 = factory0->Make({0, 1}, "gather"), reduce1 = factory1->Make({0, 1}, "reduce");
  auto waiting =
      std::async(std::launch::async, [&] { return Thrown([&] { gather0->Barrier(); }); });
  reduce1->Abort("unit 7 is not finite");
  REQUIRE(waiting.get() ==
          "peer_lost: barrier on 'gather', rank 0 of 2: aborted: unit 7 is not finite");
  const auto late = factory0->Make({0, 1}, "late");
  REQUIRE(Thrown([&] { late->Barrier(); }) ==
          "peer_lost: barrier on 'late', rank 0 of 2: aborted: unit 7 is not finite");
}

TEST_CASE("a peer that does not come is a time-out that names op, group, rank and peer", "[comm]") {
  auto comms = MakeLocalCommunicators(3, Impatient());
  const auto begin = std::chrono::steady_clock::now();
  auto second =
      std::async(std::launch::async, [&] { return Thrown([&] { comms[1]->Barrier(); }); });
  const std::string first = Thrown([&] { comms[0]->Barrier(); });
  const std::string other = second.get();
  REQUIRE(std::chrono::steady_clock::now() - begin >= milliseconds(1000));
  // One of the two times out, and takes the other with it.
  const bool zero_first = first.rfind("timeout", 0) == 0;
  const std::string& timed_out = zero_first ? first : other;
  REQUIRE(
      timed_out ==
      fmt::format("timeout: barrier on 'world', rank {} of 3: rank 2 has not come within 1000 ms",
                  zero_first ? 0 : 1));
  const std::string& follower = zero_first ? other : first;
  const bool explained = follower.find("rank 2 has not come") != std::string::npos;
  CAPTURE(first, other);
  REQUIRE(explained);
}

TEST_CASE("a peer whose communicator is gone is lost at once", "[comm]") {
  auto comms = MakeLocalCommunicators(2, SmallChunks());
  comms[1].reset();
  REQUIRE(Thrown([&] { comms[0]->Barrier(); }) ==
          "peer_lost: barrier on 'world', rank 0 of 2: rank 1 has gone");
}

TEST_CASE("ranks that disagree about a call are told so", "[comm]") {
  const auto stream = MakeHostDevice()->MakeStream(StreamRole::kCompute);
  SECTION("about its size") {
    LocalWorld world(2, SmallChunks());
    REQUIRE_THROWS_WITH(RunRanks(world,
                                 [&](CommFactory& factory) {
                                   const auto comm = factory.Make({0, 1}, "gather");
                                   const int64_t n = 5 + factory.rank();
                                   std::vector<float> shard(static_cast<size_t>(n)),
                                       full(static_cast<size_t>(2 * n));
                                   comm->AllGather(View(shard), View(full), {}, *stream);
                                 }),
                        Catch::Contains("all_gather on 'gather'") && Catch::Contains("expects") &&
                            Catch::Contains("20") && Catch::Contains("24"));
  }
  SECTION("about its kind") {
    REQUIRE_THROWS_WITH(RunRanks(2,
                                 [](Communicator& comm) {
                                   comm.rank() == 0 ? comm.Barrier()
                                                    : (void)comm.HostAllGather("x");
                                 }),
                        Catch::Contains("barrier") && Catch::Contains("host_all_gather"));
  }
}

TEST_CASE("the first failure of a rank comes back to the caller, and the others stop", "[comm]") {
  std::atomic<int> stopped = 0;
  const auto run = [&] {
    LocalWorld world(4, SmallChunks());
    RunRanks(world, [&](CommFactory& factory) {
      const auto comm = factory.Make(Everyone(4), "world");
      if (factory.rank() == 2) throw std::out_of_range("row 17 of rank 2");
      const std::string thrown = Thrown([&] { comm->Barrier(); });
      stopped += thrown.find("rank 2 failed: row 17 of rank 2") != std::string::npos;
      throw Error(ErrorCode::kPeerLost, "as peers do");
    });
  };
  REQUIRE_THROWS_MATCHES(run(), std::out_of_range, Catch::Message("row 17 of rank 2"));
  REQUIRE(stopped == 3);
}

TEST_CASE("two worlds in one process do not disturb each other", "[comm]") {
  auto first = MakeLocalCommunicators(1, SmallChunks());
  auto second = MakeLocalCommunicators(2, SmallChunks());
  auto third = MakeLocalCommunicators(2, SmallChunks());
  second[0]->Abort("only here");
  auto peer = std::async(std::launch::async, [&] { return third[1]->HostAllGather("b"); });
  REQUIRE(third[0]->HostAllGather("a") == std::vector<std::string>{"a", "b"});
  REQUIRE(peer.get() == std::vector<std::string>{"a", "b"});
  REQUIRE(first[0]->HostAllGather("c") == std::vector<std::string>{"c"});
}

TEST_CASE("worlds and options that cannot be are refused", "[comm]") {
  REQUIRE_THROWS_WITH(LocalWorld(0), Catch::Contains("a world of 0 ranks"));
  REQUIRE_THROWS_WITH(LocalWorld(2).Factory(2), Catch::Contains("rank 2 is not in a world of 2"));
  REQUIRE_THROWS_WITH(MakeLocalCommunicators(2, {.chunk_bytes = 100}),
                      Catch::Contains("chunk_bytes is 100"));
}

TEST_CASE("scratch is a chunk per rank, and none for one rank", "[comm]") {
  REQUIRE(ScratchBytes(1) == 0);
  REQUIRE(ScratchBytes(4) == 4 * 262144);
  REQUIRE(ScratchBytes(3, 1024) == 3072);
}

}  // namespace
}  // namespace millrace::testing
