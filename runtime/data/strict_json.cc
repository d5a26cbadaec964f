#include "runtime/data/strict_json.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "runtime/base/json.h"

namespace millrace {

using nlohmann::json;

json ParseStrictJson(std::string_view text, int max_depth, const JsonOrigin& origin) {
  std::vector<std::set<std::string>> keys;  // of each open object; an open array's are empty
  const auto check = [&](int, json::parse_event_t event, json& value) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        keys.emplace_back();
        MR_REQUIRE(origin.code, static_cast<int>(keys.size()) <= max_depth,
                   "{}: JSON nested deeper than {} levels", origin.name, max_depth);
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end:
        keys.pop_back();
        break;
      case json::parse_event_t::key:
        MR_REQUIRE(origin.code, keys.back().insert(value.get_ref<const std::string&>()).second,
                   "{}: the key \"{}\" is given twice", origin.name,
                   value.get_ref<const std::string&>());
        break;
      case json::parse_event_t::value:
        break;
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), check);
  } catch (const json::exception& error) {
    throw Error(origin.code, fmt::format("{}: not valid JSON: {}", origin.name, error.what()));
  }
}

const json& JsonField(const json& object, const std::string& key, const JsonOrigin& origin) {
  MR_REQUIRE(origin.code, object.is_object(), "{}: expected an object with \"{}\", got {}",
             origin.name, key, object.type_name());
  const auto found = object.find(key);
  MR_REQUIRE(origin.code, found != object.end(), "{}: \"{}\" is missing", origin.name, key);
  return *found;
}

int64_t JsonCount(const json& value, const JsonOrigin& origin) {
  // A non-negative integer literal is stored unsigned; what does not fit in 64
  // bits is stored as a float.
  MR_REQUIRE(
      origin.code,
      value.is_number_unsigned() &&
          value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()},
      "{}: expected an integer from 0 to 2^63 - 1, got {}", origin.name,
      value.is_structured() ? std::string(value.type_name()) : DumpJson(value, {.replace = true}));
  return value.get<int64_t>();
}

int64_t JsonCount(const json& object, const std::string& key, const JsonOrigin& origin) {
  return JsonCount(JsonField(object, key, origin),
                   JsonOrigin{origin.name + ": \"" + key + "\"", origin.code});
}

std::string JsonString(const json& object, const std::string& key, const JsonOrigin& origin) {
  const json& value = JsonField(object, key, origin);
  MR_REQUIRE(origin.code, value.is_string(), "{}: \"{}\" must be a string, got {}", origin.name,
             key, value.type_name());
  return value.get<std::string>();
}

}  // namespace millrace
