// A rank that cannot begin a call: with whatever it fails, the others hear of it and do not begin.
#include "runtime/api/c/agree_on.h"

#include <catch2/catch.hpp>
#include <new>
#include <vector>

#include "comm/local/run_ranks.h"
#include "runtime/api/c/status.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

struct Heard {
  int32_t code = MR_OK;
  std::string text;
};

// What each of three ranks gets as a status, where rank 1 runs `fails`; then all agree once more.
std::vector<Heard> Ask(const std::function<void()>& fails) {
  std::vector<Heard> heard(3);
  RunRanks(3, [&](Communicator& ranks) {
    const auto talk = [](const std::function<void()>& work) { work(); };
    mr_status* const status = Guarded([&] {
      AgreeOn(
          ranks, "a call",
          [&] {
            if (ranks.rank() == 1) fails();
          },
          talk);
    });
    heard[static_cast<size_t>(ranks.rank())] = {mr_status_code(status), mr_status_message(status)};
    mr_status_free(status);
    AgreeOn(
        ranks, "another", [] {}, talk);
  });
  return heard;
}

TEST_CASE("whatever one rank fails with, all hear, and go on", "[api][c][ranks]") {
  struct Case {
    std::function<void()> fails;
    int32_t code, code_of_peers;
    std::string words, words_of_peers;
  };
  const std::vector<Case> cases = {
      {[] { throw CallError(MR_BORROWED, "lent"); }, MR_BORROWED, MR_BORROWED, "lent",
       "rank 1: lent"},
      {[] { throw Error(ErrorCode::kIo, "no disk"); }, MR_IO, MR_IO, "no disk", "rank 1: no disk"},
      {[] { throw std::bad_alloc(); }, MR_DOES_NOT_FIT, MR_DOES_NOT_FIT, "out of memory",
       "rank 1: out of memory"},
      {[] { std::vector<int>().at(3); }, MR_INTERNAL, MR_INTERNAL, "", "rank 1: "},
      {[] { throw 7; }, MR_INTERNAL, MR_INTERNAL, "an exception of an unknown kind",
       "rank 1: an exception of an unknown kind"},
      {[] {}, MR_OK, MR_OK, "", ""},
  };
  for (const Case& one : cases) {
    const std::vector<Heard> heard = Ask(one.fails);
    for (const int rank : {0, 1, 2}) {
      const Heard& of = heard[static_cast<size_t>(rank)];
      CAPTURE(rank, of.text, one.words_of_peers);
      REQUIRE(of.code == (rank == 1 ? one.code : one.code_of_peers));
      REQUIRE_THAT(of.text,
                   Catch::Matchers::StartsWith(rank == 1 ? one.words : one.words_of_peers));
    }
  }
}

TEST_CASE("ranks that are in different calls all hear of both, and go on", "[api][c][ranks]") {
  std::vector<Heard> heard(3);
  RunRanks(3, [&](Communicator& ranks) {
    const auto talk = [](const std::function<void()>& work) { work(); };
    const auto call = [&](const std::string& name) {
      return Guarded([&] {
        AgreeOn(
            ranks, name, [] {}, talk);
      });
    };
    mr_status* const status = call(ranks.rank() == 2 ? "evaluate" : "step");
    heard[static_cast<size_t>(ranks.rank())] = {mr_status_code(status), mr_status_message(status)};
    mr_status_free(status);
    if (mr_status* const again = call("step")) throw Error(ErrorCode::kInternal, "not again");
  });
  for (const Heard& of : heard) {
    CHECK(of.code == MR_INVALID_ARGUMENT);
    CHECK(of.text ==
          "rank 0 is in step, and rank 2 in evaluate: every rank makes the same collective calls, "
          "in one order");
  }
}

TEST_CASE("words of another exchange are not taken for an answer", "[api][c][ranks]") {
  for (const std::string words : {"", "agree:", "e", "c12", "12"}) {
    std::vector<bool> told(2);
    RunRanks(2, [&](Communicator& ranks) {
      if (ranks.rank() == 1) {
        ranks.HostAllGather(words);
        return;
      }
      try {
        AgreeOn(
            ranks, "a call", [] {}, [](const std::function<void()>& work) { work(); });
      } catch (const Error& error) {
        told[0] = error.code() == ErrorCode::kComm;
      }
    });
    CAPTURE(words);
    CHECK(told[0]);
  }
}

}  // namespace
}  // namespace millrace
