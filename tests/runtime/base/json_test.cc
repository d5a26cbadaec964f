#include "runtime/base/json.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

using namespace millrace;

TEST_CASE("an ordered value keeps its members' order, the other one sorts them", "[json]") {
  const std::string text = R"({"b": 1, "a": [2, null]})";
  REQUIRE(DumpJson(ParseOrderedJson(text)) == R"({"b":1,"a":[2,null]})");
  REQUIRE(DumpJson(TryParseOrderedJson(text)) == R"({"b":1,"a":[2,null]})");
  REQUIRE(DumpJson(ParseJson(text)) == R"({"a":[2,null],"b":1})");
  REQUIRE(DumpJson(TryParseJson(text)) == R"({"a":[2,null],"b":1})");
}

TEST_CASE("text that is not JSON is an error, or a discarded value", "[json]") {
  const std::string text = GENERATE("", "{", "{} {}", "nan", "\"\xff\"");
  CAPTURE(text);
  REQUIRE_THROWS_AS(ParseJson(text), nlohmann::json::parse_error);
  REQUIRE_THROWS_AS(ParseOrderedJson(text), nlohmann::json::parse_error);
  REQUIRE(TryParseJson(text).is_discarded());
  REQUIRE(TryParseOrderedJson(text).is_discarded());
}

TEST_CASE("a view is parsed to its end, not to the text's", "[json]") {
  const std::string text = "[1]}";
  REQUIRE(ParseJson(std::string_view(text).substr(0, 3)) == nlohmann::json{1});
}

TEST_CASE("style: spaces per level, and what becomes of other characters", "[json]") {
  const nlohmann::json value = {{"a", "\xc3\xa9"}};  // e with an acute accent
  REQUIRE(DumpJson(value, {.indent = 2}) == "{\n  \"a\": \"\xc3\xa9\"\n}");
  REQUIRE(DumpJson(value, {.ascii = true}) == R"({"a":"\u00e9"})");
  REQUIRE(DumpJson(nlohmann::ordered_json(value), {.ascii = true}) == R"({"a":"\u00e9"})");

  const nlohmann::json broken = "a\xff";
  REQUIRE_THROWS_AS(DumpJson(broken), nlohmann::json::type_error);
  REQUIRE(DumpJson(broken, {.replace = true}) == "\"a\xef\xbf\xbd\"");
  REQUIRE(DumpJson(broken, {.ascii = true, .replace = true}) == R"("a\ufffd")");
}
