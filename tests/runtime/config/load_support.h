// Loading from text, and the message of what it refuses.
#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/config/load.h"

namespace millrace {

// What every test file starts from: nothing else has to be given.
inline const std::string kSynthetic = R"({"data": {"kind": "synthetic"}})";

inline LoadedConfig Load(const std::vector<std::string>& texts,
                         const std::vector<std::string>& sets = {},
                         const ConfigContext& context = {}) {
  std::vector<ConfigText> named;
  for (const std::string& text : texts)
    named.push_back({"file" + std::to_string(named.size()) + ".json", text});
  return LoadConfigTexts(named, sets, context);
}

// The lines of the error, first one off, without indentation; none if the
// configuration is accepted.
inline std::vector<std::string> Problems(const std::vector<std::string>& texts,
                                         const std::vector<std::string>& sets = {},
                                         const ConfigContext& context = {}) {
  std::vector<std::string> lines;
  try {
    Load(texts, sets, context);
  } catch (const Error& error) {
    REQUIRE(error.code() == ErrorCode::kConfig);
    const std::string message = error.what();
    for (size_t at = message.find('\n'); at != message.npos;) {
      const size_t end = message.find('\n', at + 1);
      lines.push_back(message.substr(at + 3, end == message.npos ? end : end - at - 3));
      at = end;
    }
    const std::string count =
        std::to_string(lines.size()) + (lines.size() == 1 ? " problem in" : " problems in");
    REQUIRE(message.starts_with(count));
  }
  return lines;
}

// {"model": {"rope_scaling": {"factor": VALUE}}} for "model.rope_scaling.factor".
inline std::string Nested(const std::string& path, const std::string& value) {
  const size_t dot = path.find('.');
  const std::string name = path.substr(0, dot);
  return "{\"" + name + "\": " + (dot == path.npos ? value : Nested(path.substr(dot + 1), value)) +
         "}";
}

inline bool AnyHas(const std::vector<std::string>& lines, const std::string& part) {
  for (const std::string& line : lines)
    if (line.find(part) != line.npos) return true;
  return false;
}

}  // namespace millrace
