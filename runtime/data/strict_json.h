// JSON from files that we did not necessarily write: nothing is guessed. A key given
// twice, nesting beyond the format's own depth, or a number of the wrong kind is an
// Error(code) that says where it is.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "runtime/base/error.h"

namespace millrace {

// The file or part that errors name, and their code.
struct JsonOrigin {
  std::string name;
  ErrorCode code = ErrorCode::kData;
};

// max_depth: arrays and objects within each other, at least 1.
nlohmann::json ParseStrictJson(std::string_view text, int max_depth, const JsonOrigin& origin);

// object[key], present and of that kind.
const nlohmann::json& JsonField(const nlohmann::json& object, const std::string& key,
                                const JsonOrigin& origin);
int64_t JsonCount(const nlohmann::json& object, const std::string& key,
                  const JsonOrigin& origin);  // integer >= 0
std::string JsonString(const nlohmann::json& object, const std::string& key,
                       const JsonOrigin& origin);

// An integer in [0, 2^63) whatever it is called.
int64_t JsonCount(const nlohmann::json& value, const JsonOrigin& origin);

}  // namespace millrace
