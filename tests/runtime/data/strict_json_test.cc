#include "runtime/data/strict_json.h"

#include <catch2/catch.hpp>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/runtime/data/error_matchers.h"

namespace millrace {
namespace {

const JsonOrigin kOrigin{"the file", ErrorCode::kCheckpoint};

void RequireRefused(const std::string& text, int depth, const std::vector<std::string>& parts) {
  RequireError(ErrorCode::kCheckpoint, parts, [&] { ParseStrictJson(text, depth, kOrigin); });
}

TEST_CASE("valid JSON is read up to the stated depth", "[data][json]") {
  const nlohmann::json value = ParseStrictJson(R"({"a":[1,{"b":2}],"c":{"a":3}})", 3, kOrigin);
  REQUIRE(value["a"][1]["b"] == 2);
  REQUIRE(value["c"]["a"] == 3);  // the same key in another object is no duplicate
  REQUIRE(ParseStrictJson("7", 1, kOrigin) == 7);
}

TEST_CASE("duplicates, depth and syntax are refused", "[data][json]") {
  RequireRefused(R"({"a":1,"a":1})", 9, {"the file", "\"a\" is given twice"});
  RequireRefused(R"({"x":{"a":1,"b":2,"a":1}})", 9, {"\"a\" is given twice"});
  RequireRefused(R"([{"a":1},{"\u0061":1,"a":2}])", 9, {"\"a\" is given twice"});
  RequireRefused(R"({"a":[1,{"b":2}]})", 2, {"deeper than 2"});
  RequireRefused(std::string(1000000, '['), 4, {"deeper than 4"});
  for (const char* bad :
       {"", "{", "{}}", "{'a':1}", "[1,]", "nul", "01", "\"\xc0\xaf\"", "NaN", "// x\n1"})
    RequireRefused(bad, 9, {"the file", "not valid JSON"});
}

TEST_CASE("fields have a kind, and counts a range", "[data][json]") {
  const nlohmann::json value = ParseStrictJson(
      R"({"n":9223372036854775807,"big":9223372036854775808,"huge":1e300,"neg":-1,"zero":0,"real":1.5,"text":"t","bool":true})",
      2, kOrigin);
  REQUIRE(JsonCount(value, "n", kOrigin) == std::numeric_limits<int64_t>::max());
  REQUIRE(JsonCount(value, "zero", kOrigin) == 0);
  REQUIRE(JsonString(value, "text", kOrigin) == "t");
  for (const char* key : {"big", "huge", "neg", "real", "text", "bool"})
    RequireError(ErrorCode::kCheckpoint, {"the file", key, "integer from 0"},
                 [&] { JsonCount(value, key, kOrigin); });
  RequireError(ErrorCode::kCheckpoint, {"\"n\" must be a string"},
               [&] { JsonString(value, "n", kOrigin); });
  RequireError(ErrorCode::kCheckpoint, {"\"gone\" is missing"},
               [&] { JsonCount(value, "gone", kOrigin); });
  RequireError(ErrorCode::kCheckpoint, {"expected an object"},
               [&] { JsonField(value["n"], "n", kOrigin); });
}

}  // namespace
}  // namespace millrace
