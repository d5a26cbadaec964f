#include "runtime/serve/body_fields.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/data/strict_json.h"

namespace millrace::serve {
namespace {

constexpr int kMostDepth = 16;  // messages with parts have five; tools, which are refused, more

nlohmann::json ParseBody(std::string_view body) {
  try {
    return ParseStrictJson(body, kMostDepth, {"the body", ErrorCode::kInvalidArgument});
  } catch (const Error& error) {
    Refuse("", error.what());
  }
}

}  // namespace

void Refuse(const std::string& param, const std::string& message) {
  throw Refused{{.status = 400, .message = message, .param = param, .code = "invalid_value"}};
}

BodyFields::BodyFields(std::string_view body) : object_(ParseBody(body)) {
  if (!object_.is_object()) Refuse("", "the body must be a JSON object");
}

const nlohmann::json* BodyFields::Find(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const nlohmann::json& BodyFields::Require(const char* key, std::string_view what) const {
  const nlohmann::json* const value = Find(key);
  if (value == nullptr) Refuse(key, fmt::format("{} is missing; it must be {}", key, what));
  return *value;
}

bool BodyFields::Flag(const char* key, bool otherwise) const {
  const nlohmann::json* const value = Find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) Refuse(key, fmt::format("{} must be true or false", key));
  return value->get<bool>();
}

std::optional<int64_t> BodyFields::Integer(const char* key, int64_t least, int64_t most) const {
  const nlohmann::json* const value = Find(key);
  if (value == nullptr) return std::nullopt;
  // JSON's reader compares the upper half of unsigned integers as negative ones.
  const bool is_huge = value->is_number_unsigned() &&
                       value->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
  const bool fits = value->is_number_integer() && !is_huge && *value >= least && *value <= most;
  if (!fits) Refuse(key, fmt::format("{} must be an integer from {} to {}", key, least, most));
  return value->get<int64_t>();
}

float BodyFields::Number(const char* key, float otherwise, float least, float most) const {
  const nlohmann::json* const value = Find(key);
  if (value == nullptr) return otherwise;
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number >= least && number <= most))
    Refuse(key, fmt::format("{} must be a number from {} to {}", key, least, most));
  return static_cast<float>(number);
}

std::string BodyFields::Text(const char* key) const {
  const nlohmann::json* const value = Find(key);
  if (value == nullptr) return {};
  if (!value->is_string()) Refuse(key, fmt::format("{} must be a text", key));
  return value->get<std::string>();
}

std::optional<std::vector<int32_t>> IdList(const nlohmann::json& value) {
  if (!value.is_array()) return std::nullopt;
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const nlohmann::json& id : value) {
    // Those below 0 are no unsigned integers.
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) return std::nullopt;
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

}  // namespace millrace::serve
