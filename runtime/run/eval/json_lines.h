// JSON lines that others wrote: one object a line.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace millrace {

// A line, and what it is called in messages: "PATH:12".
struct JsonLine {
  nlohmann::json object;
  std::string place;

  // Error(kData) naming the place where the key is missing or of another type.
  std::string Text(const char* key) const;
  std::vector<std::string> Texts(const char* key) const;
  // A number, or digits in a string.
  int64_t Integer(const char* key) const;
};

// Calls `fn` for each line that is not blank, at most `limit` (0: all). Error(kData): no line, one
// that is no object, or not UTF-8.
void ForEachJsonLine(const std::string& path, int64_t limit,
                     const std::function<void(const JsonLine&)>& fn);

}  // namespace millrace
