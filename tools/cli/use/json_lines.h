// Files of JSON lines that verbs take: one object a line, empty lines left out.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// f(line, "FILE:NUMBER") for each. Error(kData): the file cannot be read, or has no line.
void ForEachLine(const std::string& path,
                 const std::function<void(std::string_view line, const std::string& where)>& f);

// A list of tokens; nothing: it is something else.
std::optional<std::vector<int32_t>> TokenList(const nlohmann::json& value);

}  // namespace millrace
