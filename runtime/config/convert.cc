#include "runtime/config/convert.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"
#include "runtime/config/nearest.h"

namespace millrace {
namespace {

using nlohmann::json;

bool FitsInt64(const json& given) {
  return !given.is_number_unsigned() ||
         given.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

bool IsNumberIn(const KeyRange& range, const json& given) {
  return given.is_number() && std::isfinite(given.get<double>()) &&
         range.Contains(given.get<double>());
}

bool IsIntegerIn(const KeyRange& range, const json& given) {
  return given.is_number_integer() && FitsInt64(given) && IsNumberIn(range, given);
}

// `detail`: what else there is to say where none is returned, or "".
std::optional<KeyValue> TryConvert(const Key& key, const json& given, std::string* detail) {
  if (given.is_null()) return key.nullable ? std::optional<KeyValue>(KeyValue()) : std::nullopt;
  switch (key.type) {
    case KeyType::kBool:
      if (given.is_boolean()) return given.get<bool>();
      break;
    case KeyType::kInteger:
      if (IsIntegerIn(key.range, given)) return given.get<int64_t>();
      break;
    case KeyType::kNumber:
      if (IsNumberIn(key.range, given)) return given.get<double>();
      break;
    case KeyType::kString:
      if (IsNonEmptyString(given)) return given.get<std::string>();
      break;
    case KeyType::kChoice:
      if (given.is_string())
        for (const std::string_view choice : key.choices)
          if (given.get_ref<const std::string&>() == choice) return std::string(choice);
      break;
    case KeyType::kNumberPair:
      if (given.is_array() && given.size() == 2 && IsNumberIn(key.range, given[0]) &&
          IsNumberIn(key.range, given[1]))
        return given.get<std::array<double, 2>>();
      break;
    case KeyType::kIntegerOrList:
      if (IsIntegerIn(key.range, given)) return given.get<int64_t>();
      if (given.is_array() && !given.empty() &&
          std::all_of(given.begin(), given.end(),
                      [&](const json& one) { return IsIntegerIn(key.range, one); }))
        return given.get<std::vector<int64_t>>();
      break;
    case KeyType::kStrings:
      if (given.is_array() && !given.empty() &&
          std::all_of(given.begin(), given.end(), IsNonEmptyString))
        return given.get<std::vector<std::string>>();
      break;
    case KeyType::kGroups:
      if (std::optional<OptimizerGroups> groups = GroupsFrom(given, detail)) return *groups;
      break;
    case KeyType::kSources:
      if (std::optional<DataSources> sources = SourcesFrom(given, detail)) return *sources;
      break;
  }
  return std::nullopt;
}

// What is not UTF-8 could not be written into a JSON file again.
bool IsUtf8(std::string_view text) {
  try {
    return !DumpJson(json(std::string(text))).empty();
  } catch (const json::type_error&) {
    return false;
  }
}

}  // namespace

std::optional<KeyValue> Convert(const Key& key, const json& given, std::string* problem) {
  std::string detail;
  std::optional<KeyValue> value = TryConvert(key, given, &detail);
  if (value) return value;
  *problem = "must be " + Allowed(key) + (detail.empty() ? "" : ": " + detail);
  if (!key.later.empty()) *problem += " (" + key.later + ")";
  if (given.is_discarded() && key.type == KeyType::kString) *problem += ", in UTF-8";
  if (key.type == KeyType::kChoice && given.is_string()) {
    const std::string nearest = NearestName(given.get_ref<const std::string&>(), key.choices);
    if (!nearest.empty()) *problem += "; did you mean " + nearest + "?";
  }
  return std::nullopt;
}

json JsonFromSet(const Key& key, std::string_view text) {
  if (key.type == KeyType::kString || key.type == KeyType::kChoice) {
    if (key.nullable && text == "null") return nullptr;
    if (!text.starts_with('"'))
      return IsUtf8(text) ? json(std::string(text)) : json(json::value_t::discarded);
  }
  json parsed = TryParseJson(text);
  if (!parsed.is_discarded() || text.starts_with('"')) return parsed;
  double number = 0;  // ".5" and "5." are no JSON, but nobody means anything else by them
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (key.type == KeyType::kNumber && error == std::errc() && end == text.data() + text.size())
    return number;
  return std::string(text);
}

json ToJson(const KeyValue& value) {
  return std::visit(
      [](const auto& held) -> json {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::monostate>) {
          return nullptr;
        } else {
          return held;
        }
      },
      value);
}

}  // namespace millrace
