#include "runtime/config/data_source.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"

namespace millrace {
namespace {

using nlohmann::json;

std::optional<DataKind> KindFrom(const json& given) {
  for (const DataKind kind : {DataKind::kText, DataKind::kTokens})
    if (given == std::string(Name(kind))) return kind;
  return std::nullopt;
}

// What is wrong with one key of a source; "" if nothing is.
std::string Take(const std::string& key, const json& value, DataSource& source) {
  if (key == "path") {
    if (!IsNonEmptyString(value)) return "its path must be a string that is not empty";
    source.path = value.get<std::string>();
  } else if (key == "weight") {
    if (!value.is_number() || !(value.get<double>() > 0) || !(value.get<double>() <= 1e15))
      return "its weight must be a number above 0 and of at most 1e15";
    source.weight = value.get<double>();
  } else if (key == "kind") {
    source.kind = KindFrom(value);
    if (!source.kind && !value.is_null()) return "its kind must be text or tokens, or null";
  } else if (key == "val_path") {
    if (!IsNonEmptyString(value) && !value.is_null())
      return "its val_path must be a string that is not empty, or null";
    if (!value.is_null()) source.val_path = value.get<std::string>();
  } else {
    return fmt::format("it has the unknown key {}; path, weight, kind, val_path are known", key);
  }
  return "";
}

// What is wrong with one source; "" if nothing is.
std::string Read(const json& given, DataSource& source) {
  if (!given.is_object()) return "it is no object";
  for (const auto& [key, value] : given.items())
    if (std::string problem = Take(key, value, source); !problem.empty()) return problem;
  return source.path.empty() ? "it has no path" : "";
}

}  // namespace

std::string AllowedSources() {
  return "a list of objects {path, weight, kind, val_path}, of which path is needed";
}

std::optional<DataSources> SourcesFrom(const json& given, std::string* problem) {
  problem->clear();
  if (!given.is_array() || given.empty()) return std::nullopt;
  if (given.size() > kMostSources) {
    *problem = fmt::format("there are {}; {} are allowed", given.size(), kMostSources);
    return std::nullopt;
  }
  DataSources sources;
  for (const json& one : given) {
    DataSource& source = sources.emplace_back();
    const std::string wrong = Read(one, source);
    if (wrong.empty()) continue;
    *problem = fmt::format("source {}: {}", sources.size(), wrong);
    return std::nullopt;
  }
  return sources;
}

void to_json(json& value, const DataSource& source) {
  value = {{"path", source.path}, {"weight", source.weight}};
  if (source.kind) value["kind"] = Name(*source.kind);
  if (source.val_path) value["val_path"] = *source.val_path;
}

}  // namespace millrace
