// Warnings of several ranks said once.
#include "runtime/base/rank_warnings.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace millrace {
namespace {

using Lines = std::vector<std::string>;

// What rank 0 says after a meeting of ranks that have these warnings.
Lines Said(const std::vector<Lines>& of_ranks) {
  Lines packed;
  for (const Lines& warnings : of_ranks) {
    RankWarnings own;
    for (const std::string& text : warnings) own.Add(text);
    packed.push_back(PackWarnings(own.Take()));
  }
  return WarningsTogether(packed);
}

TEST_CASE("a warning that all ranks have is said once, others with their ranks", "[base][log]") {
  REQUIRE(Said({{"full"}, {"full"}, {"full"}}) == Lines{"full"});
  REQUIRE(Said({{}, {"full"}, {"full"}}) == Lines{"ranks 1-2: full"});
  REQUIRE(Said({{"full"}, {}, {}}) == Lines{"rank 0: full"});
  REQUIRE(Said({{}, {"hot"}, {}, {"hot"}, {"hot"}, {"hot"}}) == Lines{"ranks 1, 3-5: hot"});
  REQUIRE(Said({{}, {}, {}}).empty());
  REQUIRE(Said({{"full"}}) == Lines{"full"});
}

TEST_CASE("several warnings keep the order in which ranks have them", "[base][log]") {
  REQUIRE(Said({{"b", "a"}, {"a", "c"}, {"a"}}) == Lines{"rank 0: b", "a", "rank 1: c"});
  // Texts are compared whole: one that begins another is not it.
  REQUIRE(Said({{"full"}, {"full disk"}}) == Lines{"rank 0: full", "rank 1: full disk"});
  REQUIRE(Said({{"two\nlines", ""}, {"two\nlines"}}) == Lines{"two\nlines", "rank 0: "});
}

TEST_CASE("what is taken is not said again, and what repeats waits once", "[base][log]") {
  RankWarnings own;
  own.Add("full");
  own.Add("full");
  REQUIRE(own.Take() == Lines{"full"});
  REQUIRE(own.Take().empty());
  own.Add("full");
  REQUIRE(own.Take() == Lines{"full"});
}

TEST_CASE("a flood of warnings is cut, and that is said", "[base][log]") {
  RankWarnings own;
  for (int i = 0; i < 1000; ++i) own.Add(std::to_string(i));
  const Lines taken = own.Take();
  REQUIRE(taken.size() == RankWarnings::kMost + 1);
  REQUIRE(taken[RankWarnings::kMost - 1] == std::to_string(RankWarnings::kMost - 1));
  REQUIRE(taken.back() == "more warnings than are shown; the logs have them all");
}

}  // namespace
}  // namespace millrace
