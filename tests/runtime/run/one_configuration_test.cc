// Ranks of one run have one configuration, or are told what differs.
#include "runtime/run/one_configuration.h"

#include <catch2/catch.hpp>

#include "comm/local/run_ranks.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using Catch::Contains;

OwnConfiguration With(const std::vector<std::string>& sets, Backend backend = Backend::kCpu) {
  const std::vector<ConfigText> texts = {
      {"run.json", R"({"model": {"family": "gpt2"}, "data": {"kind": "text", "path": "here"}})"}};
  return {"", ConfigToJson(LoadConfigTexts(texts, sets, {}).config), backend};
}

TEST_CASE("equal configurations start, and files may lie elsewhere on each host") {
  CHECK(WhyNotOne({With({}), With({}), With({})}) == "");
  CHECK(WhyNotOne({With({}),
                   With({"model.init_from=there", "execution.tuning_file=/tmp/t.json"})}) == "");
  CHECK(WhyNotOne({With({"data.val_path=a"}), With({"data.path=there", "data.val_path=b"})}) == "");
}

TEST_CASE("what differs is named with its rank and both values") {
  const std::string one = WhyNotOne({With({}), With({}), With({"execution.peer_memory=auto"})});
  CHECK(one ==
        "rank 2 is configured otherwise than rank 0: execution.peer_memory is \"auto\", and "
        "\"off\" on rank 0; all ranks need the same");
  CHECK_THAT(WhyNotOne({With({}), With({"data.shuffle_seed=5"})}),
             Contains("data.shuffle_seed is 5, and 0 on rank 0"));
  // A list that is longer, and more keys than a line should name.
  const std::string many = WhyNotOne(
      {With({"train.steps=7"}), With({"train.steps=8", "optimizer.lr=0.5", "model.layers=3",
                                      "train.seed=9", "memory.prefetch=2"})});
  CHECK_THAT(many, Contains("and 7 on rank 0") || Contains("optimizer.lr is 0.5"));
  CHECK_THAT(many, Contains("; and 2 more; all ranks"));
}

TEST_CASE("a mistake of one rank is everybody's, and rank 0 speaks of its own first") {
  const OwnConfiguration wrong{"no such key: x", "", Backend::kCpu},
      worse{"no such file: y", "", Backend::kCpu};
  CHECK(WhyNotOne({With({}), With({}), wrong}) == "rank 2, but not rank 0: no such key: x");
  CHECK(WhyNotOne({worse, wrong}) == "no such file: y");
  CHECK(WhyNotOne({wrong, With({})}) == "no such key: x");
}

TEST_CASE("a rank without a GPU among ranks with one is told") {
  CHECK_THAT(WhyNotOne({With({}, Backend::kCuda), With({})}),
             Contains("rank 1 has the CPU to run on, and rank 0 a GPU"));
}

TEST_CASE("every rank hears the same") {
  std::vector<std::string> heard(3);
  RunRanks(3, [&](Communicator& world) {
    try {
      RequireOneConfiguration(world, With({world.rank() == 1 ? "train.steps=3" : "train.steps=4"}));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kConfig)
        heard[static_cast<size_t>(world.rank())] = error.what();
    }
  });
  for (const std::string& text : heard) {
    CHECK(text == heard[0]);
    CHECK_THAT(
        text,
        Contains("rank 1 is configured otherwise than rank 0: train.steps is 3, and 4 on rank 0"));
  }
}

}  // namespace
}  // namespace millrace
