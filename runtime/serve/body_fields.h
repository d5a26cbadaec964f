// The members of a request's body, read by kind. Internal to runtime/serve.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/serve/api_error.h"

namespace millrace::serve {

// Leaves the parser with what is to be answered.
struct Refused {
  ApiError error;
};

[[noreturn]] void Refuse(const std::string& param, const std::string& message);

class BodyFields {
 public:
  // Refused: not JSON, no object, a key twice, nested too deeply.
  explicit BodyFields(std::string_view body);

  // Null where the key is left out or null.
  const nlohmann::json* Find(const char* key) const;
  const nlohmann::json& Require(const char* key, std::string_view what) const;

  bool Flag(const char* key, bool otherwise) const;
  std::optional<int64_t> Integer(const char* key, int64_t least, int64_t most) const;
  float Number(const char* key, float otherwise, float least, float most) const;
  std::string Text(const char* key) const;  // "" without

 private:
  nlohmann::json object_;
};

// A list of ids, each from 0 to 2^31 - 1; nothing: it is something else.
std::optional<std::vector<int32_t>> IdList(const nlohmann::json& value);

}  // namespace millrace::serve
