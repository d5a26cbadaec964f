#include "runtime/record/run_environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/json.h"
#include "runtime/base/rank_list.h"

namespace millrace {
namespace {

// Who has a value, ascending.
struct Shared {
  std::string value;
  std::vector<int> ranks;
};

struct Entry {
  std::string name;
  std::vector<Shared> values;  // in the order of their first rank
};

template <class T, class Matches>
T& FindOrAdd(std::vector<T>& all, Matches&& matches, T fresh) {
  const auto found = std::find_if(all.begin(), all.end(), matches);
  return found != all.end() ? *found : all.emplace_back(std::move(fresh));
}

}  // namespace

RunEnvironment Together(const std::vector<RunEnvironment>& ranks) {
  std::vector<Entry> entries;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    for (const auto& own : ranks[rank]) {
      const std::string &name = own.first, &value = own.second;  // names that a lambda may capture
      if (rank > 0 && (name == kStartEntry || name == kCommandEntry)) continue;
      Entry& entry = FindOrAdd(
          entries, [&](const Entry& e) { return e.name == name; }, Entry{name, {}});
      FindOrAdd(
          entry.values, [&](const Shared& s) { return s.value == value; }, Shared{value, {}})
          .ranks.push_back(static_cast<int>(rank));
    }
  RunEnvironment all;
  for (const auto& [name, values] : entries) {
    const bool is_rank_0s = name == kStartEntry || name == kCommandEntry;
    if (is_rank_0s || (values.front().ranks.size() == ranks.size() && name != kHostEntry)) {
      all.emplace_back(name, values.front().value);
      continue;
    }
    std::vector<std::string> words;
    for (const auto& [value, whose] : values) words.push_back(value + ": " + RanksText(whose));
    all.emplace_back(name, fmt::format("{}", fmt::join(words, "; ")));
  }
  return all;
}

std::string PackedText(const RunEnvironment& own) {
  return DumpJson(nlohmann::json(own), {.replace = true});
}

RunEnvironment Together(const std::vector<std::string>& packed) {
  std::vector<RunEnvironment> ranks;
  for (const std::string& text : packed) ranks.push_back(ParseJson(text).get<RunEnvironment>());
  return Together(ranks);
}

}  // namespace millrace
