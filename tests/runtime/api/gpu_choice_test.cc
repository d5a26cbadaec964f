// Which GPU a rank takes, from what the ranks of its host see. Hosts and GPUs are names here.
#include "runtime/api/gpu_choice.h"

#include <catch2/catch.hpp>

#include "comm/local/local_world.h"
#include "comm/local/run_ranks.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using Catch::Contains;
using Gpus = std::vector<std::string>;

struct Rank {
  std::string host;
  Gpus gpus;
};

struct Choice {
  int gpu = -1;
  std::string refusal;
};

// What each rank gets. Every rank's part ends, also where another's is an error.
std::vector<Choice> ChoicesOf(const std::vector<Rank>& ranks) {
  std::vector<Choice> choices(ranks.size());
  LocalWorld world(static_cast<int>(ranks.size()));
  RunRanks(world, [&](CommFactory& factory) {
    const auto rank = static_cast<size_t>(factory.rank());
    try {
      choices[rank].gpu = ChooseGpu(factory, ranks[rank].host, ranks[rank].gpus);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kConfig) throw;
      choices[rank].refusal = error.what();
    }
  });
  return choices;
}

void RequireGpus(const std::vector<Rank>& ranks, const std::vector<int>& expected) {
  const std::vector<Choice> choices = ChoicesOf(ranks);
  for (size_t r = 0; r < ranks.size(); ++r) {
    CAPTURE(r, choices[r].refusal);
    REQUIRE(choices[r].gpu == expected[r]);
  }
}

const Gpus kTwo = {"GPU-a", "GPU-b"}, kFour = {"GPU-a", "GPU-b", "GPU-c", "GPU-d"};

TEST_CASE("ranks that see the same GPUs take them in order, host by host", "[cli]") {
  RequireGpus({{"elm", kTwo}}, {0});
  RequireGpus({{"elm", kTwo}, {"elm", kTwo}}, {0, 1});
  RequireGpus({{"elm", kFour}, {"oak", kTwo}, {"elm", kFour}, {"oak", kTwo}, {"elm", kFour}},
              {0, 0, 1, 1, 2});
}

TEST_CASE("ranks that each see one GPU of their own take it", "[cli]") {
  RequireGpus({{"elm", {"GPU-a"}}}, {0});
  RequireGpus({{"elm", {"GPU-a"}}, {"elm", {"GPU-b"}}, {"elm", {"GPU-c"}}}, {0, 0, 0});
  // Another host is none of theirs: it may be set up otherwise, and ids of hosts may repeat.
  RequireGpus({{"elm", {"GPU-a"}}, {"oak", kTwo}, {"elm", {"GPU-b"}}, {"oak", kTwo}}, {0, 0, 0, 1});
  RequireGpus({{"elm", {"GPU-a"}}, {"oak", {"GPU-a"}}}, {0, 0});
}

TEST_CASE("two ranks never share a GPU", "[cli]") {
  const std::vector<std::vector<Rank>> hosts = {
      {{"elm", {"GPU-a"}}, {"elm", {"GPU-a"}}},
      {{"elm", {"GPU-a"}}, {"elm", {"GPU-b"}}, {"elm", {"GPU-a"}}},
      {{"elm", kTwo}, {"elm", {"GPU-b"}}},  // one is bound, the other is not
      {{"elm", {"GPU-b"}}, {"elm", kTwo}},
      {{"elm", kTwo}, {"elm", {"GPU-b", "GPU-a"}}},
      {{"elm", kTwo}, {"elm", kTwo}, {"elm", kTwo}},
      {{"elm", {}}},
  };
  for (const std::vector<Rank>& ranks : hosts) {
    const std::vector<Choice> choices = ChoicesOf(ranks);
    const Choice& last = choices.back();
    CAPTURE(ranks.size(), last.refusal);
    REQUIRE(last.gpu == -1);
    REQUIRE_THAT(last.refusal,
                 Contains("rank " + std::to_string(ranks.size() - 1) + " is number ") &&
                     Contains(" on elm") &&
                     Contains("sees " + std::to_string(ranks.back().gpus.size()) + " GPUs") &&
                     Contains("--gpus-per-task=1") && Contains("execution.backend=cpu"));
  }
  for (const size_t both : {3, 4})
    for (const Choice& choice : ChoicesOf(hosts[both]))
      REQUIRE_THAT(choice.refusal, Contains(" is another rank's, too"));
}

}  // namespace
}  // namespace millrace
