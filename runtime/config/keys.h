// The one table of configuration keys. Parser, `--set`, JSON Schema, documentation and
// `config show` all read it, so none can drift from the others. A new key is a field in
// config.h and a row in keys.cc.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/config/config.h"

namespace millrace {

enum class KeyType {
  kBool,
  kInteger,
  kNumber,
  kString,
  kChoice,
  kNumberPair,
  kIntegerOrList,
  kSources,
  kGroups,
  kStrings
};

// A key's value; monostate is null, a choice is its JSON name.
using KeyValue =
    std::variant<std::monostate, bool, int64_t, double, std::string, std::array<double, 2>,
                 std::vector<int64_t>, DataSources, OptimizerGroups, std::vector<std::string>>;

// Bounds of an integer, a number, or each of a pair or list.
struct KeyRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_exclusive = false;
  bool max_exclusive = false;

  bool Contains(double value) const {
    return (min_exclusive ? value > min : value >= min) &&
           (max_exclusive ? value < max : value <= max);
  }
};

struct Key {
  std::string path;  // "optimizer.schedule.warmup"
  KeyType type = KeyType::kInteger;
  bool nullable = false;
  bool required = false;  // no default: must be given when its (nullable) section is
  std::vector<std::string_view> choices;
  KeyRange range;
  std::string later;  // of a key that allows one value: what other values will be; in the error
  std::string doc;    // one line, Markdown
  std::function<KeyValue(const Config&)> get;
  std::function<void(Config&, const KeyValue&)>
      set;  // the value has the key's type and lies in its range

  std::string_view section() const;  // "optimizer.schedule"
  std::string_view leaf() const;     // "warmup"
};

// In the order of the documentation: sections together.
const std::vector<Key>& Keys();

const Key* FindKey(std::string_view path);  // null if there is none

// Whether `path` names an object of keys ("optimizer.schedule"); the root "" is one.
bool IsSection(std::string_view path);

// model.rope_scaling: a section that may be null, and is by default.
bool IsNullableSection(std::string_view path);

// "an integer from 1 to 65536", "one of gpt2, llama", "a string, or null".
std::string Allowed(const Key& key);

}  // namespace millrace
