// comm/nccl: what can be checked without a GPU.
#include "comm/nccl/nccl_options.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>

#include "runtime/base/error.h"

namespace millrace::testing {
namespace {

std::string Refusal(const std::string& text) {
  try {
    ParseNcclOptions(text);
    return "accepted";
  } catch (const Error& error) {
    return error.code() == ErrorCode::kConfig ? error.what() : "another code";
  }
}

TEST_CASE("options are read part by part, and printed as they are read", "[comm][nccl]") {
  const NcclOptions all =
      ParseNcclOptions("symmetric,threads,cta_policy=zero,min_ctas=4,max_ctas=16,timeout_ms=1500");
  REQUIRE(all.symmetric);
  REQUIRE(all.cta_policy == CtaPolicy::kZero);
  REQUIRE(all.min_ctas == 4);
  REQUIRE(all.max_ctas == 16);
  REQUIRE(all.timeout == std::chrono::milliseconds(1500));
  REQUIRE(all.threads == RankThreads::kAllow);
  REQUIRE(ToString(all) ==
          "symmetric,threads,cta_policy=zero,min_ctas=4,max_ctas=16,timeout_ms=1500");
  REQUIRE(ParseNcclOptions(ToString(all)) == all);
  REQUIRE(ParseNcclOptions("") == NcclOptions{});
  REQUIRE(ParseNcclOptions("cta_policy=efficiency").cta_policy == CtaPolicy::kEfficiency);
  REQUIRE(ToString(NcclOptions{}) == "max_ctas=16,timeout_ms=600000");
  REQUIRE(ParseNcclOptions("max_ctas=64").max_ctas == 64);
}

TEST_CASE("ranks that are threads of one process are told by name", "[comm][nccl]") {
  using Catch::Contains;
  REQUIRE(NcclOptions{}.threads == RankThreads::kRefuse);
  REQUIRE(WhyNotProcesses({}) == "");
  REQUIRE(WhyNotProcesses({"1", "2", "12"}) == "");
  REQUIRE_THAT(
      WhyNotProcesses({"7", "8", "9", "8"}),
      Contains("ranks 1 and 3 are threads of one process") && Contains("one process per rank"));
}

TEST_CASE("options that mean nothing are refused by name", "[comm][nccl]") {
  using Catch::Contains;
  REQUIRE_THAT(Refusal("symetric"), Contains("'symetric'") && Contains("symmetric,"));
  REQUIRE_THAT(Refusal("cta_policy=none"), Contains("'cta_policy=none'") && Contains("efficiency"));
  REQUIRE_THAT(Refusal("max_ctas=0"), Contains("'max_ctas=0'") && Contains("from 1 to 64"));
  REQUIRE_THAT(Refusal("max_ctas=65"), Contains("'max_ctas=65'"));
  REQUIRE_THAT(Refusal("max_ctas=8x"), Contains("'max_ctas=8x'"));
  REQUIRE_THAT(Refusal("max_ctas"), Contains("'max_ctas'"));
  REQUIRE_THAT(Refusal("timeout_ms=-1"), Contains("'timeout_ms=-1'"));
  REQUIRE_THAT(Refusal("symmetric,"), Contains("comma"));
  REQUIRE_THAT(Refusal("cta_policy=zero"), Contains("needs 'symmetric'"));
  REQUIRE_THAT(Refusal("min_ctas=8,max_ctas=4"), Contains("min_ctas=8") && Contains("max_ctas=4"));
  REQUIRE_THAT(Refusal("min_ctas=17"), Contains("min_ctas=17") && Contains("max_ctas=16"));
}

TEST_CASE("a user's environment stays, except for multicast, which is off", "[comm][nccl]") {
  std::map<std::string, const char*> environment;
  const auto lookup = [&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second;
  };
  const auto missing = [&] {
    std::map<std::string, std::string> values;
    for (const NcclSetting& setting : MissingSettings(lookup)) values[setting.name] = setting.value;
    return values;
  };
  using Values = std::map<std::string, std::string>;
  REQUIRE(missing() == Values{{"NCCL_NVLS_ENABLE", "0"},
                              {"NCCL_GRAPH_REGISTER", "0"},
                              {"NCCL_RAS_ENABLE", "0"}});
  environment = {{"NCCL_NVLS_ENABLE", "2"}, {"NCCL_GRAPH_REGISTER", "1"}, {"NCCL_RAS_ENABLE", "1"}};
  REQUIRE(missing() == Values{{"NCCL_NVLS_ENABLE", "0"}});
  environment["NCCL_NVLS_ENABLE"] = "0";
  REQUIRE(missing().empty());
}

TEST_CASE("the process's environment is put in order", "[comm][nccl]") {
  setenv("NCCL_NVLS_ENABLE", "1", 1);
  setenv("NCCL_GRAPH_REGISTER", "1", 1);
  unsetenv("NCCL_RAS_ENABLE");
  PrepareNcclEnvironment();
  REQUIRE(std::string(std::getenv("NCCL_NVLS_ENABLE")) == "0");
  REQUIRE(std::string(std::getenv("NCCL_GRAPH_REGISTER")) == "1");
  REQUIRE(std::string(std::getenv("NCCL_RAS_ENABLE")) == "0");
}

TEST_CASE("the versions whose window kernels overtake are fenced", "[comm][nccl]") {
  REQUIRE_FALSE(NeedsFence(22707));
  REQUIRE(NeedsFence(22800));
  REQUIRE(NeedsFence(22809));
  REQUIRE(NeedsFence(23006));
  REQUIRE_FALSE(NeedsFence(23007));
}

}  // namespace
}  // namespace millrace::testing
