#include "runtime/config/given_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "runtime/base/json.h"
#include "runtime/config/convert.h"
#include "runtime/config/load.h"

namespace millrace {

const GivenValue* GivenValues::Find(const std::string& path) const {
  for (const auto* given : {&keys, &objects})
    if (const auto it = given->find(path); it != given->end()) return &it->second;
  return nullptr;
}

std::string GivenValues::FirstGiven(const std::vector<std::string>& paths) const {
  const auto given = std::find_if(paths.begin(), paths.end(),
                                  [&](const std::string& path) { return Find(path) != nullptr; });
  return given == paths.end() ? paths.front() : *given;
}

bool GivenValues::HasFailed(const std::string& path) const {
  return std::any_of(failed.begin(), failed.end(), [&](const std::string& one) {
    return path == one || path.starts_with(one + '.');
  });
}

bool GivenValues::AreKnown(const std::vector<std::string>& paths, const Config& config) const {
  return std::none_of(paths.begin(), paths.end(), [&](const std::string& path) {
    const bool comes_later = config.model.init_from && path.starts_with("model.") && !Find(path);
    return comes_later || HasFailed(path);
  });
}

std::string GivenValues::Shown(const std::vector<std::string>& paths, const Config& config) const {
  std::vector<std::string> values;
  for (const std::string& path : paths) {
    const GivenValue* given = Find(path);
    const std::string place = given ? given->place : "default";
    const Key* key = FindKey(path);
    values.push_back(
        key ? fmt::format("{} = {} ({})", path, DumpJson(ToJson(key->get(config))), place)
            : fmt::format("{} ({})", path, place));
  }
  return fmt::format("{}", fmt::join(values, ", "));
}

void ProblemList::ThrowIfAny() {
  if (problems_.empty()) return;
  std::stable_sort(problems_.begin(), problems_.end(), [](const Listed& a, const Listed& b) {
    return std::tie(a.source, a.offset) < std::tie(b.source, b.offset);
  });
  std::string message = fmt::format("{} problem{} in the configuration:", problems_.size(),
                                    problems_.size() == 1 ? "" : "s");
  for (const Listed& problem : problems_) message += "\n  " + problem.text;
  const std::string& key = problems_.front().key;
  throw ConfigError(message, key.empty() ? "" : PointerOfKey(key));
}

}  // namespace millrace
