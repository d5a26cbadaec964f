#include "runtime/run/eval/json_lines.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/data/input_file.h"
#include "runtime/data/strict_json.h"

namespace millrace {
namespace {

constexpr int64_t kLargestFile = int64_t{4} << 30;
constexpr int kDepth = 16;

}  // namespace

std::string JsonLine::Text(const char* key) const {
  const auto found = object.find(key);
  MR_REQUIRE(ErrorCode::kData, found != object.end() && found->is_string(),
             "{}: \"{}\" is {}; a string is expected", place, key,
             found == object.end() ? "missing" : found->type_name());
  return found->get<std::string>();
}

std::vector<std::string> JsonLine::Texts(const char* key) const {
  const auto found = object.find(key);
  MR_REQUIRE(ErrorCode::kData, found != object.end() && found->is_array(),
             "{}: \"{}\" is {}; a list of strings is expected", place, key,
             found == object.end() ? "missing" : found->type_name());
  std::vector<std::string> texts;
  for (const nlohmann::json& one : *found) {
    MR_REQUIRE(ErrorCode::kData, one.is_string(), "{}: \"{}\" holds {}; strings are expected",
               place, key, one.type_name());
    texts.push_back(one.get<std::string>());
  }
  return texts;
}

int64_t JsonLine::Integer(const char* key) const {
  const auto found = object.find(key);
  if (found != object.end() && found->is_number_integer()) return found->get<int64_t>();
  const bool is_text = found != object.end() && found->is_string();
  const std::string text = is_text ? found->get<std::string>() : std::string();
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  MR_REQUIRE(ErrorCode::kData,
             !text.empty() && error == std::errc() && end == text.data() + text.size(),
             "{}: \"{}\" is {}; an integer is expected", place, key,
             found == object.end() ? "missing" : found->type_name());
  return value;
}

void ForEachJsonLine(const std::string& path, int64_t limit,
                     const std::function<void(const JsonLine&)>& fn) {
  const std::string text = ReadWholeFile(path, kLargestFile, ErrorCode::kData);
  std::string_view left = text;
  int64_t number = 0, taken = 0;
  while (!left.empty() && (limit == 0 || taken < limit)) {
    const std::string_view line = left.substr(0, left.find('\n'));
    left.remove_prefix(std::min(left.size(), line.size() + 1));
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const std::string place = path + ":" + std::to_string(number);
    JsonLine parsed{ParseStrictJson(line, kDepth, {place, ErrorCode::kData}), place};
    MR_REQUIRE(ErrorCode::kData, parsed.object.is_object(), "{}: {}; an object is expected", place,
               parsed.object.type_name());
    fn(parsed);
    ++taken;
  }
  MR_REQUIRE(ErrorCode::kData, taken > 0, "{} has no line", path);
}

}  // namespace millrace
