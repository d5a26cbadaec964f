// What ranks ran on, as one list.
#include "runtime/record/run_environment.h"

#include <catch2/catch.hpp>
#include <mutex>

#include "comm/local/run_ranks.h"

namespace millrace {
namespace {

RunEnvironment Rank(const std::string& host, const std::string& device) {
  return {{"host", host}, {"started", "of " + host}, {"command", "on " + host}, {"device", device}};
}

TEST_CASE("what all ranks share is said once, a host with its ranks", "[run_environment]") {
  CHECK(Together(std::vector<RunEnvironment>{}) == RunEnvironment{});
  CHECK(Together({Rank("elm", "H200")}) == RunEnvironment{{"host", "elm: rank 0"},
                                                          {"started", "of elm"},
                                                          {"command", "on elm"},
                                                          {"device", "H200"}});
  CHECK(Together({Rank("elm", "H200"), Rank("elm", "H200"), Rank("oak", "H200")}) ==
        RunEnvironment{{"host", "elm: ranks 0-1; oak: rank 2"},
                       {"started", "of elm"},
                       {"command", "on elm"},
                       {"device", "H200"}});
}

TEST_CASE("values that differ, or that a rank lacks, say whose they are", "[run_environment]") {
  std::vector<RunEnvironment> ranks(6, Rank("elm", "H200"));
  ranks[2] = ranks[4] = ranks[5] = Rank("elm", "H100");
  ranks[0].emplace_back("NCCL", "2.28.9");
  ranks[3].emplace_back("NCCL", "2.28.9");
  ranks[5].emplace_back("MPI", "4.1.4");  // a name that rank 0 lacks
  const RunEnvironment all = Together(ranks);
  REQUIRE(all.size() == 6);
  CHECK(all[3] ==
        std::pair<std::string, std::string>("device", "H200: ranks 0-1, 3; H100: ranks 2, 4-5"));
  CHECK(all[4] == std::pair<std::string, std::string>("NCCL", "2.28.9: ranks 0, 3"));
  CHECK(all[5] == std::pair<std::string, std::string>("MPI", "4.1.4: rank 5"));
}

TEST_CASE("every rank learns of all; bytes that are no text are replaced", "[run_environment]") {
  std::mutex mutex;
  std::vector<RunEnvironment> seen;
  RunRanks(3, [&](Communicator& world) {
    const RunEnvironment all = Together(world.HostAllGather(
        PackedText({{"device", world.rank() < 2 ? "a\xff\"" : "b"}, {"MPI", "4.1"}})));
    const std::lock_guard lock(mutex);
    seen.push_back(all);
  });
  const RunEnvironment expected = {{"device", "a\xef\xbf\xbd\": ranks 0-1; b: rank 2"},
                                   {"MPI", "4.1"}};
  CHECK(seen == std::vector<RunEnvironment>(3, expected));
}

}  // namespace
}  // namespace millrace
