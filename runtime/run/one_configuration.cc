#include "runtime/run/one_configuration.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostNamed = 3;  // keys of a message

// Files that each rank opens where its host has them; what is in them is compared
// elsewhere, or rank 0 tells.
bool MayDiffer(const std::string& pointer) {
  return pointer == "/data/path" || pointer == "/data/val_path" || pointer == "/model/init_from" ||
         pointer == "/execution/tuning_file" ||
         (pointer.starts_with("/data/sources/") && pointer.ends_with("path"));
}

std::string Words(Backend backend) { return backend == Backend::kCuda ? "a GPU" : "the CPU"; }

// Keys with different values, as "a.b is 1, and 2 on rank 0".
std::string Differences(const std::string& theirs, const std::string& leaders) {
  const Json there = ParseJson(theirs).flatten(), here = ParseJson(leaders).flatten();
  std::vector<std::string> keys;
  const auto compare = [&](const Json& all) {
    for (const auto& [pointer, value] : all.items()) {
      const Json a = there.value(pointer, Json()), b = here.value(pointer, Json());
      if (MayDiffer(pointer) || a == b) continue;
      std::string key = pointer.substr(1);
      std::replace(key.begin(), key.end(), '/', '.');
      const std::string words =
          fmt::format("{} is {}, and {} on rank 0", key, DumpJson(a), DumpJson(b));
      if (std::find(keys.begin(), keys.end(), words) == keys.end()) keys.push_back(words);
    }
  };
  compare(here);
  compare(there);
  const size_t more = keys.size() > kMostNamed ? keys.size() - kMostNamed : 0;
  keys.resize(keys.size() - more);
  return fmt::format("{}{}", fmt::join(keys, "; "),
                     more == 0 ? "" : fmt::format("; and {} more", more));
}

}  // namespace

std::string WhyNotOne(const std::vector<OwnConfiguration>& ranks) {
  const OwnConfiguration& leader = ranks.front();
  if (!leader.mistakes.empty()) return leader.mistakes;
  for (size_t r = 1; r < ranks.size(); ++r)
    if (!ranks[r].mistakes.empty())
      return fmt::format("rank {}, but not rank 0: {}", r, ranks[r].mistakes);
  for (size_t r = 1; r < ranks.size(); ++r) {
    const std::string keys = Differences(ranks[r].keys, leader.keys);
    if (!keys.empty())
      return fmt::format("rank {} is configured otherwise than rank 0: {}; all ranks need the same",
                         r, keys);
    if (ranks[r].backend != leader.backend)
      return fmt::format(
          "rank {} has {} to run on, and rank 0 {}: set execution.backend, or see why not all "
          "ranks see a GPU",
          r, Words(ranks[r].backend), Words(leader.backend));
  }
  return "";
}

void RequireOneConfiguration(Communicator& world, const OwnConfiguration& own) {
  const Json mine = {own.mistakes, own.keys, own.backend == Backend::kCuda};
  std::vector<OwnConfiguration> ranks;
  for (const std::string& text : world.HostAllGather(DumpJson(mine, {.replace = true}))) {
    const Json told = ParseJson(text);
    ranks.push_back({told[0], told[1], told[2].get<bool>() ? Backend::kCuda : Backend::kCpu});
  }
  const std::string why = WhyNotOne(ranks);
  MR_REQUIRE(ErrorCode::kConfig, why.empty(), "{}", why);
}

}  // namespace millrace
