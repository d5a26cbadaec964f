// Every third-party library compiles without warnings, links, and is the version or flavour that we
// count on; the compiler flags that our arithmetic depends on are in force.
#include <cblas.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <xxhash.h>

#include <CLI/CLI.hpp>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validator.hpp>
#include <vector>

namespace {

using nlohmann::json;

TEST_CASE("products and sums are not contracted into a fused multiply-add", "[build]") {
  // (1 + e)^2 - (1 + 2e) is e^2 when fused and 0 when the product is rounded first.
  volatile float a = 1.0f + 0x1p-13f;
  volatile float c = -(1.0f + 0x1p-12f);
  const float x = a, y = c;
  REQUIRE(x * x + y == 0.0f);
}

TEST_CASE("BLAS multiplies row-major matrices", "[build]") {
  const std::vector<float> a = {1, 2, 3, 4, 5, 6},
                           b = {1, 10, 100, 1000, 10000, 100000};  // [2,3] x [3,2]
  std::vector<float> c(4);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 2, 2, 3, 1.0f, a.data(), 3, b.data(), 2,
              0.0f, c.data(), 2);
  REQUIRE(c == std::vector<float>{30201, 302010, 60504, 605040});
}

TEST_CASE("XXH3-128 of the empty string is the published value", "[build]") {
  const XXH128_hash_t hash = XXH3_128bits("", 0);
  REQUIRE(hash.high64 == 0x99aa06d3014798d8ull);
  REQUIRE(hash.low64 == 0x6001c324468d497full);
}

TEST_CASE("a JSON schema accepts what it allows and rejects the rest", "[build]") {
  const json schema_text = json::parse(
      R"({"properties": {"lr": {"type": "number", "minimum": 0}}, "additionalProperties": false})");
  valijson::Schema schema;
  const valijson::adapters::NlohmannJsonAdapter schema_adapter(schema_text);
  valijson::SchemaParser().populateSchema(schema_adapter, schema);
  const auto accepts = [&](const json& value) {
    const valijson::adapters::NlohmannJsonAdapter adapter(value);
    return valijson::Validator().validate(schema, adapter, nullptr);
  };
  REQUIRE(accepts({{"lr", 0.5}}));
  REQUIRE_FALSE(accepts({{"lr", -0.5}}));
  REQUIRE_FALSE(accepts({{"rl", 0.5}}));
}

TEST_CASE("CLI11 and spdlog link", "[build]") {
  CLI::App app;
  int ranks = 0;
  app.add_option("-n", ranks);
  app.parse("-n 3");
  REQUIRE(ranks == 3);
  REQUIRE(fmt::format("{:04x}", 0xbeef) == "beef");
  REQUIRE(spdlog::default_logger() != nullptr);
}

}  // namespace
