// JSON to and from text, compiled once. nlohmann's parser and writer are templates: a file that
// calls json::parse or dump itself compiles them again, which takes longer than the rest of it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace millrace {

// Text that is not JSON: nlohmann::json::parse_error. An ordered value keeps its members in the
// text's order, the other one sorts them.
nlohmann::json ParseJson(std::string_view text);
nlohmann::ordered_json ParseOrderedJson(std::string_view text);

// Text that is not JSON: a value that is_discarded().
nlohmann::json TryParseJson(std::string_view text);
nlohmann::ordered_json TryParseOrderedJson(std::string_view text);

bool IsNonEmptyString(const nlohmann::json& value);

struct JsonStyle {
  int indent = -1;       // spaces per level; -1: all in one line
  bool ascii = false;    // other characters become \uXXXX
  bool replace = false;  // bytes that are not UTF-8 become U+FFFD; else nlohmann::json::type_error
};

std::string DumpJson(const nlohmann::json& value, const JsonStyle& style = {});
std::string DumpJson(const nlohmann::ordered_json& value, const JsonStyle& style = {});

// JSON has neither NaN nor infinities: what is not finite becomes null.
nlohmann::ordered_json FiniteOrNull(double value);

}  // namespace millrace
