#include "runtime/plan/cost/document_section.h"

#include <fmt/core.h>

#include <utility>

#include "runtime/base/json.h"

namespace millrace {
namespace {

using json = DocumentSection::json;

constexpr double kMost = 1e9;  // of any number as written

std::string Shown(const json& value) {
  constexpr size_t kShown = 60;
  std::string text = DumpJson(value, {.ascii = true, .replace = true});
  return text.size() > kShown ? text.substr(0, kShown) + "..." : text;
}

}  // namespace

DocumentSection::DocumentSection(const json& value, std::string path,
                                 std::vector<std::string>& errors)
    : value_(value), path_(std::move(path)), errors_(errors) {
  if (!value.is_object())
    errors_.push_back(fmt::format("{}: {}; allowed: an object", path_.empty() ? "document" : path_,
                                  Shown(value)));
}

const json* DocumentSection::Find(const std::string& key) {
  asked_.insert(key);
  if (!value_.is_object()) return nullptr;
  const auto it = value_.find(key);
  if (it != value_.end()) return &*it;
  errors_.push_back(Path(key) + ": missing");
  return nullptr;
}

void DocumentSection::Fail(const std::string& key, const json& value, const std::string& allowed) {
  errors_.push_back(fmt::format("{}: {}; allowed: {}", Path(key), Shown(value), allowed));
}

double DocumentSection::NumberOf(const std::string& key, Least least) {
  const json* value = Find(key);
  if (value == nullptr) return 0;
  const double number = value->is_number() ? value->get<double>() : -1;
  if (number >= 0 && number <= kMost && (number > 0 || least == Least::kZero)) return number;
  Fail(key, *value,
       fmt::format("a number {} to {:.0e}", least == Least::kZero ? "from 0" : "above 0", kMost));
  return 1;
}

int64_t DocumentSection::IntegerOf(const std::string& key, int64_t low) {
  const json* value = Find(key);
  if (value == nullptr) return low;
  const double number = value->is_number_integer() ? value->get<double>() : -1;
  if (number >= static_cast<double>(low) && number <= kMost) return value->get<int64_t>();
  Fail(key, *value, fmt::format("an integer from {} to {:.0e}", low, kMost));
  return low;
}

std::string DocumentSection::TextOf(const std::string& key) {
  const json* value = Find(key);
  if (value == nullptr) return "";
  if (value->is_string()) return value->get<std::string>();
  Fail(key, *value, "a string");
  return "";
}

bool DocumentSection::BoolOf(const std::string& key) {
  const json* value = Find(key);
  if (value == nullptr) return true;
  if (value->is_boolean()) return value->get<bool>();
  Fail(key, *value, "true or false");
  return true;
}

void DocumentSection::RefuseUnknown() const {
  if (!value_.is_object()) return;
  std::string allowed;
  for (const std::string& key : asked_) allowed += (allowed.empty() ? "" : ", ") + key;
  for (const auto& [key, unused] : value_.items())
    if (asked_.count(key) == 0)
      errors_.push_back(fmt::format("{}: unknown key; allowed: {}", Path(key), allowed));
}

}  // namespace millrace
