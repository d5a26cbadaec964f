#include "tools/launch/rank_command.h"

#include <stdlib.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "runtime/base/error.h"

namespace millrace {
namespace {

using Words = std::vector<std::string>;

TEST_CASE("ranks and hosts stand before the verb, in every form", "[launch]") {
  for (const Words& given : {Words{"-n", "3"}, {"-n3"}, {"--ranks", "3"}, {"--ranks=3"}}) {
    Words words = given;
    words.insert(words.end(), {"train", "-n", "a.json"});
    const auto options = TakeRankOptions(words);
    REQUIRE(options);
    CHECK(options->ranks == 3);
    CHECK_FALSE(options->alone());
    CHECK(words == Words{"train", "-n", "a.json"});
  }
  Words words = {"--hostfile", "/dev/null", "train"};
  const auto hosts = TakeRankOptions(words);
  REQUIRE(hosts);
  CHECK(hosts->ranks == 1);
  CHECK(hosts->hostfile == "/dev/null");
  CHECK_FALSE(hosts->alone());
  words = {"-n", "2", "--hostfile=/dev/null", "-n", "1"};
  CHECK(TakeRankOptions(words)->ranks == 1);  // the last one counts
  CHECK(words.empty());
  for (const Words& other : {Words{}, {"train", "-n", "3"}, {"--help"}, {"--set", "a=b"}}) {
    words = other;
    CHECK_FALSE(TakeRankOptions(words));
    CHECK(words == other);
  }
}

TEST_CASE("a wrong number of ranks or a missing file is named", "[launch]") {
  struct Case {
    Words words;
    const char* says;
  };
  for (const Case& c : {Case{{"-n", "two"}, "-n two: the number of ranks is a whole number from 1"},
                        {{"-n0"}, "-n 0: the number"},
                        {{"-n", "100000"}, "-n 100000: the number"},
                        {{"--ranks="}, "-n : the number"},
                        {{"-n", "-1"}, "-n -1: the number"},
                        {{"-n", "1.5"}, "-n 1.5: the number"},
                        {{"-n"}, "-n needs a value"},
                        {{"--hostfile=/no/such"}, "--hostfile /no/such: no such readable file"}}) {
    Words words = c.words;
    try {
      TakeRankOptions(words);
      FAIL("accepted: " << c.says);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kConfig);
      CHECK_THAT(error.what(), Catch::StartsWith(c.says));
    }
  }
}

TEST_CASE("mpirun is told the variables that ranks on other hosts need", "[launch]") {
  for (const char* name :
       {"NO_COLOR", "CI", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "OMPI_MCA_oob_tcp_keepalive_time"})
    ::unsetenv(name);
  ::setenv("OMPI_MCA_oob_tcp_keepalive_intvl", "60", 1);
  ::setenv("NO_COLOR", "1", 1);
  ::setenv("CI", "", 1);
  ::setenv("COLUMNS", "123", 1);
  const Variables variables = RankVariables();
  CHECK(variables.at("OMP_NUM_THREADS") == "1");
  CHECK(variables.at("OMPI_MCA_oob_tcp_keepalive_time") == "6");
  CHECK_FALSE(variables.contains("OMPI_MCA_oob_tcp_keepalive_intvl"));  // the user's own stays
  CHECK_FALSE(variables.contains("COLUMNS"));
  const Words words = MpirunCommand({3, "hosts"}, variables, "0a1b", {"train", "a.json"});
  CHECK(Words(words.begin(), words.begin() + 3) == Words{"mpirun", "-n", "3"});
  CHECK(Words(words.end() - 4, words.end()) ==
        Words{OwnProgram(), "--as-rank=0a1b", "train", "a.json"});
  const auto names = [&](const std::string& name) {
    const auto found = std::find(words.begin(), words.end(), name);
    return found != words.end() && *(found - 1) == "-x";
  };
  for (const char* name :
       {"OMP_NUM_THREADS", "COLUMNS", "NO_COLOR", "MILLRACE_STDOUT_TTY", "MILLRACE_STDERR_TTY"})
    CHECK(names(name));
  CHECK_FALSE(names("CI"));  // mpirun would complain about one that is not set
  CHECK_FALSE(names("LD_LIBRARY_PATH"));
  CHECK(std::find(words.begin(), words.end(), "--hostfile") != words.end());
}

}  // namespace
}  // namespace millrace
