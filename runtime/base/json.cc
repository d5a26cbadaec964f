#include "runtime/base/json.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace millrace {
namespace {

template <typename Value>
std::string Dump(const Value& value, const JsonStyle& style) {
  using Handler = typename Value::error_handler_t;
  return value.dump(style.indent, ' ', style.ascii,
                    style.replace ? Handler::replace : Handler::strict);
}

}  // namespace

nlohmann::json ParseJson(std::string_view text) { return nlohmann::json::parse(text); }
nlohmann::ordered_json ParseOrderedJson(std::string_view text) {
  return nlohmann::ordered_json::parse(text);
}

nlohmann::json TryParseJson(std::string_view text) {
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}
nlohmann::ordered_json TryParseOrderedJson(std::string_view text) {
  return nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
}

bool IsNonEmptyString(const nlohmann::json& value) {
  return value.is_string() && !value.get_ref<const std::string&>().empty();
}

nlohmann::ordered_json FiniteOrNull(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

std::string DumpJson(const nlohmann::json& value, const JsonStyle& style) {
  return Dump(value, style);
}
std::string DumpJson(const nlohmann::ordered_json& value, const JsonStyle& style) {
  return Dump(value, style);
}

}  // namespace millrace
