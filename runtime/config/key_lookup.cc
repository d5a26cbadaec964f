// How keys are found, and what they allow in words.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/config/keys.h"

namespace millrace {

std::string_view Key::section() const {
  const std::string_view all = path;
  const size_t dot = all.rfind('.');
  return dot == all.npos ? std::string_view() : all.substr(0, dot);
}

std::string_view Key::leaf() const {
  const std::string_view all = path;
  return all.substr(all.rfind('.') + 1);  // npos + 1 is 0
}

const Key* FindKey(std::string_view path) {
  for (const Key& key : Keys())
    if (key.path == path) return &key;
  return nullptr;
}

bool IsSection(std::string_view path) {
  if (path.empty()) return true;
  return std::any_of(Keys().begin(), Keys().end(), [&](const Key& key) {
    return key.path.size() > path.size() && key.path.starts_with(path) &&
           key.path[path.size()] == '.';
  });
}

bool IsNullableSection(std::string_view path) {
  return std::any_of(Keys().begin(), Keys().end(),
                     [&](const Key& key) { return key.required && key.section() == path; });
}

namespace {

std::string RangeText(const Key& key) {
  const KeyRange& range = key.range;
  const auto number = [&](double value) {
    return key.type == KeyType::kInteger || key.type == KeyType::kIntegerOrList
               ? fmt::format("{}", static_cast<int64_t>(value))
               : fmt::format("{}", value);
  };
  const bool has_min = range.min > -std::numeric_limits<double>::infinity();
  const bool has_max = range.max < std::numeric_limits<double>::infinity();
  std::string text;
  if (has_min && has_max && !range.min_exclusive && !range.max_exclusive)
    return fmt::format(" from {} to {}", number(range.min), number(range.max));
  if (has_min)
    text += fmt::format(" {} {}", range.min_exclusive ? "above" : "of at least", number(range.min));
  if (has_min && has_max) text += " and";
  if (has_max)
    text += fmt::format(" {} {}", range.max_exclusive ? "below" : "of at most", number(range.max));
  return text;
}

}  // namespace

std::string Allowed(const Key& key) {
  std::string text;
  switch (key.type) {
    case KeyType::kBool:
      text = "true or false";
      break;
    case KeyType::kInteger:
      text = key.range.min == key.range.max ? fmt::format("{}", static_cast<int64_t>(key.range.min))
                                            : "an integer" + RangeText(key);
      break;
    case KeyType::kNumber:
      text = "a number" + RangeText(key);
      break;
    case KeyType::kString:
      text = "a string that is not empty";
      break;
    case KeyType::kChoice:
      text = (key.choices.size() == 1 ? "" : "one of ") +
             fmt::format("{}", fmt::join(key.choices, ", "));
      break;
    case KeyType::kNumberPair:
      text = "a list of 2 numbers, each" + RangeText(key);
      break;
    case KeyType::kIntegerOrList:
      text = "an integer" + RangeText(key) + ", or a list of such";
      break;
    case KeyType::kSources:
      text = AllowedSources();
      break;
    case KeyType::kGroups:
      text = AllowedGroups();
      break;
    case KeyType::kStrings:
      text = "a list of strings that are not empty";
      break;
  }
  return key.nullable ? text + ", or null" : text;
}

}  // namespace millrace
