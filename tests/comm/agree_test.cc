// One rank fails, all hear: of which rank, with which code and words.
#include "comm/agree.h"

#include <catch2/catch.hpp>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/local/run_ranks.h"

namespace millrace {
namespace {

struct Heard {
  int rank = -1;  // none failed
  ErrorCode code = ErrorCode::kInternal;
  std::string words;
  bool operator==(const Heard&) const = default;
};

// What each of `world` ranks hears of `step`.
template <class Step>
std::vector<Heard> HeardOf(int world, const Step& step) {
  std::vector<Heard> heard(static_cast<size_t>(world));
  RunRanks(world, [&](Communicator& ranks) {
    const auto first = FirstFailure(ranks, [&] { step(ranks.rank()); });
    if (first)
      heard[static_cast<size_t>(ranks.rank())] = {first->rank, first->error.code(),
                                                  first->error.what()};
  });
  return heard;
}

TEST_CASE("the lowest rank's failure is heard by all, with its code and words", "[comm][agree]") {
  const int world = GENERATE(1, 2, 5);
  for (int lowest = 0; lowest <= world; ++lowest) {  // world: none fails
    CAPTURE(world, lowest);
    const auto heard = HeardOf(world, [&](int rank) {
      if (rank >= lowest)
        throw Error(rank % 2 == 0 ? ErrorCode::kIo : ErrorCode::kData,
                    "rank's own words " + std::to_string(rank) + "\n\"");
    });
    const Heard expected = lowest == world
                               ? Heard{}
                               : Heard{lowest, lowest % 2 == 0 ? ErrorCode::kIo : ErrorCode::kData,
                                       "rank's own words " + std::to_string(lowest) + "\n\""};
    CHECK(heard == std::vector<Heard>(static_cast<size_t>(world), expected));
  }
}

TEST_CASE("an exception of another kind is an internal failure, an Error without words one too",
          "[comm][agree]") {
  CHECK(HeardOf(2, [](int rank) {
          if (rank == 1) throw std::runtime_error("bad alloc");
        }) == std::vector<Heard>(2, {1, ErrorCode::kInternal, "bad alloc"}));
  CHECK(HeardOf(2, [](int rank) {
          if (rank == 1) throw Error(ErrorCode::kConfig, "");
        }) == std::vector<Heard>(2, {1, ErrorCode::kConfig, ""}));
}

TEST_CASE("words of another exchange are not taken for an answer", "[comm][agree]") {
  for (const std::string words : {"", "0", "00", "agree", "{}"}) {
    std::vector<std::string> said(3);
    RunRanks(3, [&](Communicator& ranks) {
      try {
        if (ranks.rank() == 1)
          ranks.HostAllGather(words);
        else
          FirstFailure(ranks, std::nullopt);
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kComm)
          said[static_cast<size_t>(ranks.rank())] = error.what();
      }
    });
    const std::string one =
        "rank 1 is in another exchange than this one: the ranks make other "
        "calls, or in another order";
    CHECK(said == std::vector<std::string>{one, "", one});
  }
}

TEST_CASE("a step of the leader runs once, and its failure is thrown on all", "[comm][agree]") {
  for (const bool fails : {false, true}) {
    std::mutex mutex;
    int runs = 0;
    std::vector<std::string> thrown;
    RunRanks(3, [&](Communicator& ranks) {
      std::string words;
      try {
        OnLeader(ranks, [&] {
          const std::lock_guard lock(mutex);
          ++runs;
          if (ranks.rank() != 0) throw Error(ErrorCode::kInternal, "not the leader");
          if (fails) throw Error(ErrorCode::kCheckpoint, "it is damaged");
        });
      } catch (const Error& error) {
        words = (error.code() == ErrorCode::kCheckpoint ? "checkpoint: " : "other: ") +
                std::string(error.what());
      }
      const std::lock_guard lock(mutex);
      thrown.push_back(words);
    });
    CHECK(runs == 1);
    CHECK(thrown ==
          std::vector<std::string>(3, fails ? "checkpoint: it is damaged" : std::string()));
  }
}

}  // namespace
}  // namespace millrace
