// How the rows of the table of keys are written (keys.cc, model_keys.cc): a field's type gives its
// key's.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/config/enum_names.h"
#include "runtime/config/keys.h"

namespace millrace {

// The rows of `model`.
std::vector<Key> ModelKeys();

inline constexpr KeyRange any;  // of what has no bounds

// Those of several functions, one after the other.
inline std::vector<Key> Joined(std::initializer_list<std::vector<Key> (*)()> sections) {
  std::vector<Key> keys;
  for (const auto section : sections)
    for (Key& key : section()) keys.push_back(std::move(key));
  return keys;
}

template <typename T>
struct Unwrapped {
  using type = T;
  static constexpr bool kNullable = false;
};
template <typename T>
struct Unwrapped<std::optional<T>> {
  using type = T;
  static constexpr bool kNullable = true;
};

template <typename T>
constexpr KeyType TypeOf() {
  if constexpr (std::is_same_v<T, bool>) return KeyType::kBool;
  if constexpr (std::is_same_v<T, int64_t>) return KeyType::kInteger;
  if constexpr (std::is_same_v<T, double>) return KeyType::kNumber;
  if constexpr (std::is_same_v<T, std::string>) return KeyType::kString;
  if constexpr (std::is_same_v<T, std::array<double, 2>>) return KeyType::kNumberPair;
  if constexpr (std::is_same_v<T, IntegerOrList>) return KeyType::kIntegerOrList;
  if constexpr (std::is_same_v<T, DataSources>) return KeyType::kSources;
  if constexpr (std::is_same_v<T, OptimizerGroups>) return KeyType::kGroups;
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return KeyType::kStrings;
  if constexpr (std::is_enum_v<T>) return KeyType::kChoice;
}

template <typename T>
KeyValue ToValue(const T& field) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(Name(field));
  } else if constexpr (std::is_same_v<T, IntegerOrList>) {
    return std::visit([](const auto& held) { return KeyValue(held); }, field);
  } else {
    return field;
  }
}
template <typename T>
KeyValue ToValue(const std::optional<T>& field) {
  return field ? ToValue(*field) : KeyValue();
}

template <typename T>
void Store(T& field, const KeyValue& value) {
  using Plain = typename Unwrapped<T>::type;
  if constexpr (Unwrapped<T>::kNullable) {
    if (std::holds_alternative<std::monostate>(value)) return field.reset();
  }
  if constexpr (std::is_enum_v<Plain>) {
    const auto names = NamesOf(Plain{});
    const auto it = std::find(names.begin(), names.end(), std::get<std::string>(value));
    field = static_cast<Plain>(it - names.begin());
  } else if constexpr (std::is_same_v<Plain, IntegerOrList>) {
    if (const auto* list = std::get_if<std::vector<int64_t>>(&value))
      field = *list;
    else
      field = std::get<int64_t>(value);
  } else {
    field = std::get<Plain>(value);
  }
}

// A row of the table; `access` returns the field of a Config, const or not.
template <typename Access>
Key MakeKey(std::string path, Access access, KeyRange range, std::string doc) {
  using Field = std::remove_cvref_t<decltype(access(std::declval<Config&>()))>;
  using Plain = typename Unwrapped<Field>::type;
  Key key;
  key.path = std::move(path);
  key.type = TypeOf<Plain>();
  key.nullable = Unwrapped<Field>::kNullable;
  if constexpr (std::is_enum_v<Plain>) {
    const auto names = NamesOf(Plain{});
    key.choices.assign(names.begin(), names.end());
  }
  key.range = range;
  key.doc = std::move(doc);
  key.get = [access](const Config& config) { return ToValue(access(config)); };
  key.set = [access](Config& config, const KeyValue& value) { Store(access(config), value); };
  return key;
}

inline Key Required(Key key) {
  key.required = true;
  return key;
}

inline Key Only(std::string_view choice, Key key) {
  key.choices = {choice};
  return key;
}
inline Key OneOf(std::initializer_list<std::string_view> choices, Key key) {
  key.choices = choices;
  return key;
}
inline Key Only(int64_t value, std::string_view later, Key key) {
  key.range = {.min = static_cast<double>(value), .max = static_cast<double>(value)};
  key.later = later;
  return key;
}

inline KeyRange From(double min, double max) { return {.min = min, .max = max}; }
inline KeyRange Above(double min) { return {.min = min, .min_exclusive = true}; }
inline KeyRange AtLeast(double min) { return {.min = min}; }

inline constexpr double kMillion = 1e6;
// Above 0 for kernels too: a float32 would make smaller values 0, and larger ones infinite.
inline constexpr KeyRange kFloat32 = {.min = 1e-30, .max = 1e30};
inline constexpr double kMaxSeed = 9007199254740991;  // 2^53 - 1: every JSON reader keeps it exact

// The path is the field's own name, so the two cannot differ.
#define KEY(field, ...) \
  MakeKey(              \
      #field, [](auto& c) -> auto& { return c.field; }, __VA_ARGS__)

}  // namespace millrace
