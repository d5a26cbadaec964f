#include "runtime/text/tokenizer/json_path.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/data/strict_json.h"

namespace millrace {

using nlohmann::json;

JsonPath::JsonPath(const json& root, std::string file) : value_(&root), file_(std::move(file)) {}

JsonPath::JsonPath(const json& value, std::string file, std::string way)
    : value_(&value), file_(std::move(file)), way_(std::move(way)) {}

std::string JsonPath::name() const { return way_.empty() ? file_ : file_ + ": " + way_; }

bool JsonPath::Has(const std::string& key) const { return ObjectAt().contains(key); }

JsonPath JsonPath::operator[](const std::string& key) const {
  return {JsonField(*value_, key, {name(), ErrorCode::kData}), file_,
          way_.empty() ? key : way_ + "." + key};
}

JsonPath JsonPath::operator[](size_t index) const {
  return {ArrayAt().at(index), file_, fmt::format("{}[{}]", way_, index)};
}

void JsonPath::AllowKeys(std::initializer_list<const char*> keys) const {
  for (const auto& [key, value] : ObjectAt().items())
    MR_REQUIRE(ErrorCode::kData, std::find(keys.begin(), keys.end(), key) != keys.end(),
               "{}: the key \"{}\" is not known", name(), key);
}

const json& JsonPath::ObjectAt() const {
  MR_REQUIRE(ErrorCode::kData, value_->is_object(), "{}: expected an object, got {}", name(),
             Shown());
  return *value_;
}

const json& JsonPath::ArrayAt() const {
  MR_REQUIRE(ErrorCode::kData, value_->is_array(), "{}: expected an array, got {}", name(),
             Shown());
  return *value_;
}

std::string JsonPath::Text() const {
  MR_REQUIRE(ErrorCode::kData, value_->is_string(), "{}: expected a string, got {}", name(),
             Shown());
  return value_->get<std::string>();
}

bool JsonPath::Bool() const {
  MR_REQUIRE(ErrorCode::kData, value_->is_boolean(), "{}: expected true or false, got {}", name(),
             Shown());
  return value_->get<bool>();
}

int64_t JsonPath::Count(int64_t most) const {
  const int64_t count = JsonCount(*value_, {name(), ErrorCode::kData});
  MR_REQUIRE(ErrorCode::kData, count <= most, "{}: {} is more than {}", name(), count, most);
  return count;
}

void JsonPath::RequireNull() const {
  if (!value_->is_null()) Refuse("null");
}

void JsonPath::RequireFalse() const {
  if (*value_ != json(false)) Refuse("false");
}

void JsonPath::RequireEmptyOrNull() const {
  if (!value_->is_null() && *value_ != json("")) Refuse("null or an empty string");
}

void JsonPath::RequireZeroOrNull() const {
  if (!value_->is_null() && !(value_->is_number() && value_->get<double>() == 0))
    Refuse("null or 0");
}

std::string JsonPath::Shown() const {
  return value_->is_structured() ? value_->type_name() : DumpJson(*value_, {.replace = true});
}

void JsonPath::Refuse(const char* allowed) const {
  throw Error(ErrorCode::kData,
              fmt::format("{}: {} is not supported; {} is", name(), Shown(), allowed));
}

}  // namespace millrace
