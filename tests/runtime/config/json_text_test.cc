#include "runtime/config/json_text.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

namespace millrace {
namespace {

struct Where {
  int line, column;
  bool operator==(const Where&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const Where& where) {
    return out << where.line << ':' << where.column;
  }
};

Where At(const JsonText& json, size_t offset) {
  const TextPosition position = PositionOf(json.text(), offset);
  return {position.line, position.column};
}

TEST_CASE("members know where their key and value are", "[config][json]") {
  const JsonText json(
      "{\n"
      "  \"a\": {\"b\" : 12.5e3 ,\n"
      "\t\"c\":[1, {\"d\": \"x\\\"}]\"}]},\n"
      "  \"sl/ash~\": null}");
  REQUIRE(json.problems().empty());
  const auto value = [&](const char* pointer) {
    const JsonMember* member = json.Find(pointer);
    REQUIRE(member);
    return json.text().substr(member->value_begin, member->value_end - member->value_begin);
  };
  REQUIRE(At(json, json.Find("/a")->key) == Where{2, 3});
  REQUIRE(At(json, json.Find("/a/b")->key) == Where{2, 9});
  REQUIRE(value("/a/b") == "12.5e3");
  REQUIRE(At(json, json.Find("/a/c")->key) == Where{3, 2});
  REQUIRE(value("/a/c") == "[1, {\"d\": \"x\\\"}]\"}]");
  REQUIRE(value("/a/c/1/d") == "\"x\\\"}]\"");
  REQUIRE(At(json, json.Find("/sl~1ash~0")->key) == Where{4, 3});
  REQUIRE(value("/sl~1ash~0") == "null");
  REQUIRE(json.Find("/a/d") == nullptr);
}

TEST_CASE("columns count characters, and a byte order mark counts nothing", "[config][json]") {
  const JsonText json("\xef\xbb\xbf{\"gr\xc3\xb6\xc3\x9f\x65\": 1, \"x\": 2}");
  REQUIRE(json.problems().empty());
  REQUIRE(At(json, json.Find("/x")->key) == Where{1, 14});
}

TEST_CASE("escaped keys are the keys that they spell", "[config][json]") {
  const JsonText json(R"({"l\u0061yers": 3})");
  REQUIRE(json.Find("/layers") != nullptr);
  REQUIRE(json.root().at("layers") == 3);
}

TEST_CASE("a key given twice is reported at its second place; lists may repeat", "[config][json]") {
  const JsonText json("{\"a\": {\"x\": 1,\n \"\\u0078\": 2}, \"b\": [{\"x\": 1}, {\"x\": 2}]}");
  REQUIRE(json.problems().size() == 1);
  REQUIRE(At(json, json.problems()[0].offset) == Where{2, 2});
  REQUIRE(json.problems()[0].text == "\"x\" is given twice in one object, first in line 1");
  REQUIRE(json.root()["a"]["x"] == 2);
}

TEST_CASE("text that is not JSON is reported where it stops being JSON", "[config][json]") {
  struct Case {
    const char* text;
    Where where;
    const char* part;
  };
  for (const Case& c : {Case{"", {1, 1}, "unexpected end of input"},
                        {"{\n  \"a\": 1,\n}", {3, 1}, "expected string literal"},
                        {"{\"a\": 1 \"b\": 2}", {1, 9}, "unexpected string literal"},
                        {"{\"a\": NaN}", {1, 7}, "JSON has no NaN or infinity"},
                        {"{\"a\": nan}", {1, 7}, "JSON has no NaN or infinity"},
                        {"{\"a\": Infinity}", {1, 7}, "JSON has no NaN or infinity"},
                        {"{\"a\": -Infinity}", {1, 7}, "JSON has no NaN or infinity"},
                        {"{\"a\": 1e999}", {1, 7}, "number overflow parsing '1e999'"},
                        {"{\n// why\n}", {2, 1}, "JSON has no comments"},
                        {"{'a': 1}", {1, 2}, "double quotes"},
                        {"{\"a\": 1} x", {1, 10}, "expected end of input"},
                        {"{\"a\": \"b", {1, 9}, "missing closing quote"}}) {
    CAPTURE(c.text);
    const JsonText json(c.text);
    REQUIRE(json.root().is_null());
    REQUIRE(json.problems().size() == 1);
    CAPTURE(json.problems()[0].text);
    REQUIRE(json.problems()[0].text.starts_with("not a JSON document: "));
    REQUIRE(json.problems()[0].text.find(c.part) != std::string::npos);
    REQUIRE(json.problems()[0].text.find("json.exception") == std::string::npos);
    REQUIRE(At(json, json.problems()[0].offset) == c.where);
  }
}

TEST_CASE("a long name around many members does not take their product in memory",
          "[config][json]") {
  const std::string longest(250, 'n'), longer(300, 'm');
  const JsonText json("{\"" + longest + "\":{\"abcd\":1,\"abcde\":[{}]},\"" + longer +
                      "\":{\"b\":{\"c\":1}},\"d\":2}");
  REQUIRE(json.problems().empty());
  CHECK(json.Find("/" + longest) != nullptr);
  CHECK(json.Find("/" + longest + "/abcd") != nullptr);
  CHECK(json.Find("/" + longest + "/abcde") == nullptr);
  CHECK(json.Find("/" + longer) == nullptr);
  CHECK(json.Find("/b") == nullptr);
  CHECK(json.Find("/c") == nullptr);
  CHECK(json.Find("/d") != nullptr);
}

TEST_CASE("deep nesting is refused, not followed", "[config][json]") {
  const auto lists = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  REQUIRE(JsonText(lists(32)).problems().empty());
  REQUIRE(JsonText(lists(33)).problems().size() == 1);
  REQUIRE(JsonText(std::string(5'000'000, '[')).problems().size() == 1);
  const auto objects = [](int depth) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += R"({"a":)";
    return text + "1" + std::string(depth, '}');
  };
  REQUIRE(JsonText(objects(32)).problems().empty());
  REQUIRE(JsonText(objects(33)).problems().size() == 1);
}

}  // namespace
}  // namespace millrace
