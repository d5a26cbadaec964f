// One value of one key, from JSON or from the text after `--set key=`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/config/keys.h"

namespace millrace {

// Empty if `given` has the wrong type or is out of range; `problem` then says what is allowed, and
// what may have been meant: "must be one of gpt2, llama; did you mean llama?".
std::optional<KeyValue> Convert(const Key& key, const nlohmann::json& given, std::string* problem);

// The JSON that the text stands for, by the key's type; text that fits no type becomes a string,
// which Convert refuses.
nlohmann::json JsonFromSet(const Key& key, std::string_view text);

nlohmann::json ToJson(const KeyValue& value);

}  // namespace millrace
