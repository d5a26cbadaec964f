#include "runtime/config/nearest.h"

#include <array>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "runtime/config/keys.h"

namespace millrace {
namespace {

// The last part of the path with one slip at `at`: a letter dropped, doubled, replaced,
// or swapped with the next.
std::vector<std::string> Slips(const Key& key) {
  const std::string leaf(key.leaf());
  const std::string section = std::string(key.section()) + '.';
  std::vector<std::string> slips;
  for (size_t at = 0; at < leaf.size(); ++at) {
    std::string dropped = leaf, doubled = leaf, replaced = leaf, swapped = leaf;
    if (leaf.size() > 2) slips.push_back(section + dropped.erase(at, 1));
    slips.push_back(section + doubled.insert(at, 1, leaf[at]));
    replaced[at] = 'q';
    slips.push_back(section + replaced);
    if (at + 1 < leaf.size() && leaf[at] != leaf[at + 1]) {
      std::swap(swapped[at], swapped[at + 1]);
      slips.push_back(section + swapped);
    }
  }
  return slips;
}

TEST_CASE("one slip in any letter of any key finds the key again", "[config][nearest]") {
  int tried = 0;
  for (const Key& key : Keys()) {
    for (const std::string& slip : Slips(key)) {
      if (FindKey(slip)) continue;
      ++tried;
      if (NearestKey(slip) != key.path)
        FAIL(slip << " suggests " << NearestKey(slip) << ", not " << key.path);
    }
  }
  REQUIRE(tried > 1500);
}

TEST_CASE("a slip in the section, a wrong section and a missing section are found",
          "[config][nearest]") {
  REQUIRE(NearestKey("optimzer") == "optimizer");
  REQUIRE(NearestKey("optimzer.lr") == "optimizer.lr");
  REQUIRE(NearestKey("train.lr") == "optimizer.lr");
  REQUIRE(NearestKey("optimizer.warmup") == "optimizer.schedule.warmup");
  REQUIRE(NearestKey("lr") == "optimizer.lr");
  REQUIRE(NearestKey("optimizer.shedule") == "optimizer.schedule");
  REQUIRE(NearestKey("training.steps") == "train.steps");
}

TEST_CASE("other trainers' names lead to ours, and each of ours exists", "[config][nearest]") {
  REQUIRE(NearestKey("model.n_layer") == "model.layers");
  REQUIRE(NearestKey("hidden_size") == "model.d_model");
  REQUIRE(NearestKey("train.batch_size") == "train.micro_batch");
  REQUIRE(NearestKey("optimizer.learning_rate") == "optimizer.lr");
  for (const char* foreign :
       {"n_embd", "n_head", "num_key_value_heads", "intermediate_size", "vocab_size", "out_dir",
        "block_size", "grad_clip", "warmup_steps", "rms_norm_eps", "max_iters"}) {
    CAPTURE(foreign);
    REQUIRE(FindKey(NearestKey(foreign)) != nullptr);
  }
}

TEST_CASE("nonsense suggests nothing", "[config][nearest]") {
  REQUIRE(NearestKey("zzzzzzzz").empty());
  const std::array<std::string_view, 2> families = {"gpt2", "llama"};
  REQUIRE(NearestName("lama", families) == "llama");
  REQUIRE(NearestName("gpt-2", families) == "gpt2");
  REQUIRE(NearestName("mistral", families).empty());
}

}  // namespace
}  // namespace millrace
