#include "tools/cli/use/json_lines.h"

#include <fmt/core.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"

namespace millrace {

void ForEachLine(const std::string& path,
                 const std::function<void(std::string_view line, const std::string& where)>& f) {
  std::ifstream file(path);
  int64_t number = 0;
  bool any = false;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    any = true;
    f(line, fmt::format("{}:{}", path, number));
  }
  MR_REQUIRE(ErrorCode::kData, any && !file.bad(), "{}: cannot be read, or has no line", path);
}

std::optional<std::vector<int32_t>> TokenList(const nlohmann::json& value) {
  if (!value.is_array()) return std::nullopt;
  std::vector<int32_t> tokens;
  for (const nlohmann::json& token : value) {
    if (!token.is_number_integer() || token < 0 || token > INT32_MAX) return std::nullopt;
    tokens.push_back(token.get<int32_t>());
  }
  return tokens;
}

}  // namespace millrace
