#include "runtime/plan/pool/pool_config.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"

namespace millrace {
namespace {

using nlohmann::json;

PoolConfig Parse(const char* text) { return ParsePoolConfig(json::parse(text)); }

constexpr const char* kSmall = R"({"pool": {"prefetch": 1,
    "units": [{"kind": "M", "buckets": [{"dtype": "bf16", "numel": 1000}]},
              {"kind": "E", "buckets": [{"dtype": "bf16", "numel": 3000}, {"dtype": "fp32", "numel": 10}]}],
    "pattern": "MEM"}})";

TEST_CASE("a pool file is read into kinds and a pattern", "[plan][pool_config]") {
  PoolConfig expected;
  expected.prefetch = 1;
  expected.units = {{'M', {{DType::kBF16, 1000}}},
                    {'E', {{DType::kBF16, 3000}, {DType::kF32, 10}}}};
  expected.pattern = "MEM";
  REQUIRE(Parse(kSmall) == expected);
}

std::string ItemsText(const std::vector<Item>& items) {
  std::string text;
  for (const Item& item : items) {
    text += item.name + " unit " + std::to_string(item.unit) + " " + std::string(Name(item.dtype)) +
            " " + std::to_string(item.bytes);
    for (const Interval& i : item.intervals)
      text += " [" + std::to_string(i.begin) + ", " + std::to_string(i.end) + ")";
    text += "\n";
  }
  return text;
}

//   position   0   1   2 | 3   4   5
//   computes   M0  E1  M2  M2  E1  M0
//   M0         ====              ====
//   E1         ========    ========
//   M2             ============          kept over the turn-around
TEST_CASE("a unit is live with its neighbours, and the last one over the turn-around",
          "[plan][pool_config]") {
  REQUIRE(ItemsText(PoolConfigItems(Parse(kSmall))) ==
          "0.M.0 unit 0 bf16 2000 [0, 1) [4, 6)\n"
          "1.E.0 unit 1 bf16 6000 [0, 2) [3, 5)\n"
          "1.E.1 unit 1 f32 40 [0, 2) [3, 5)\n"
          "2.M.0 unit 2 bf16 2000 [1, 4)\n");
  PoolConfig alone = Parse(kSmall);
  alone.prefetch = 0;
  REQUIRE(ItemsText(PoolConfigItems(alone)) ==
          "0.M.0 unit 0 bf16 2000 [0, 1) [5, 6)\n"
          "1.E.0 unit 1 bf16 6000 [1, 2) [4, 5)\n"
          "1.E.1 unit 1 f32 40 [1, 2) [4, 5)\n"
          "2.M.0 unit 2 bf16 2000 [2, 4)\n");
}

TEST_CASE("any prefetch depth keeps at most prefetch + 1 units live", "[plan][pool_config]") {
  const int prefetch = GENERATE(0, 1, 2, 3, 7);
  PoolConfig config = Parse(kSmall);
  config.prefetch = prefetch;
  config.pattern = "MEMMEEMEMEMM";
  const std::vector<Item> items = PoolConfigItems(config);
  for (int64_t position = 0; position < 24; ++position) {
    std::vector<bool> live(12, false);
    for (const Item& item : items)
      for (const Interval& i : item.intervals)
        if (i.begin <= position && position < i.end) live[static_cast<size_t>(item.unit)] = true;
    // By hand: the unit that computes and its successors in the phase.
    std::vector<bool> expected(12, false);
    for (int64_t ahead = 0; ahead <= prefetch; ++ahead) {
      const int64_t unit = position < 12 ? position + ahead : 23 - position - ahead;
      if (unit >= 0 && unit < 12) expected[static_cast<size_t>(unit)] = true;
    }
    CAPTURE(prefetch, position);
    REQUIRE(live == expected);
  }
  const PoolFigures figures = PlanPoolFigures(config);
  REQUIRE(figures.packed >= figures.lower_bound);
  REQUIRE(figures.persistent ==
          7 * 2048 + 5 * (6144 + 256));  // seven M and five E, padded to 256 bytes
}

TEST_CASE("every mistake in a pool file is reported at once, by path", "[plan][pool_config]") {
  const auto errors = [](const char* text) -> std::string {
    try {
      Parse(text);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kConfig);
      return error.what();
    }
    return "accepted";
  };
  CHECK(errors("[]") == "document: []; allowed: an object");
  CHECK(errors(R"({"pools": 1})") == "pool: missing\npools: unknown key; allowed: pool");
  CHECK(errors(R"({"pool": 3})") == "pool: 3; allowed: an object");
  CHECK(errors(R"({"pool": {"prefetch": -1, "units": [], "pattern": ""}})") ==
        "pool.prefetch: -1; allowed: an integer from 0 to 64\n"
        "pool.units: []; allowed: an array of at least one unit kind\n"
        "pool.pattern: \"\"; allowed: at least one character, each a kind of pool.units: ");
  CHECK(errors(R"({"pool": {"prefetch": 1.5, "units": [{"kind": "MM", "buckets": {}, "more": 1},
                                 {"kind": "E", "buckets": [{"dtype": "bf17", "numel": 0}]},
                                 {"kind": "E", "buckets": [{"numel": 18446744073709551615}]}],
                            "pattern": "EEM"}})") ==
        "pool.prefetch: 1.5; allowed: an integer from 0 to 64\n"
        "pool.units[0].more: unknown key; allowed: kind, buckets\n"
        "pool.units[0].kind: \"MM\"; allowed: one printable ASCII character\n"
        "pool.units[0].buckets: {}; allowed: an array of at least one bucket\n"
        "pool.units[1].buckets[0].dtype: \"bf17\"; allowed: \"bf16\", \"fp32\" or \"u8\"\n"
        "pool.units[1].buckets[0].numel: 0; allowed: an integer from 1 to 1099511627776\n"
        "pool.units[2].buckets[0].dtype: missing\n"
        "pool.units[2].buckets[0].numel: 18446744073709551615; allowed: an integer from 1 to "
        "1099511627776\n"
        "pool.units[2].kind: \"E\"; allowed: each kind once\n"
        "pool.pattern[2]: \"EEM\"; allowed: at least one character, each a kind of pool.units: EE");
}

struct Stack {
  const char* file;
  std::vector<std::pair<char, int>> unit_mib;  // by kind
  int fixed, max_pool, coloured, lower_bound;  // MiB, unpadded arithmetic
};

// Figures published beside the shapes, computed without this code: rounded to MiB from unpadded
// sizes. Ours round each bucket up to 256 bytes, less than 0.03 MiB over 104 buckets.
TEST_CASE("the three hybrid stacks have the published figures, and pack to the lower bound",
          "[plan][pool_config]") {
  const Stack stack = GENERATE(
      Stack{"nemotron_3_nano_ep8", {{'M', 74}, {'*', 45}, {'E', 343}}, 8310, 686, 462, 417},
      Stack{"nemotron_3_nano_ep1", {{'M', 74}, {'*', 45}, {'E', 2475}}, 57334, 4949, 2593, 2549},
      Stack{"nemotron_h_8b", {{'M', 209}, {'*', 80}, {'-', 336}}, 8802, 672, 625, 545});
  CAPTURE(stack.file);
  std::ifstream file(std::string("configs/hybrid/") + stack.file + ".json");
  REQUIRE(file.is_open());
  const PoolConfig config = ParsePoolConfig(json::parse(file));
  REQUIRE(config.pattern.size() == 52);
  constexpr double kMiB = 1 << 20;
  const auto near = [&](int64_t bytes, int mib) {
    return std::abs(static_cast<double>(bytes) / kMiB - mib) <= 0.5 + 0.03;
  };

  int64_t total = 0;
  for (const auto& [kind, mib] : stack.unit_mib) {
    const auto unit = std::find_if(config.units.begin(), config.units.end(),
                                   [&, k = kind](const auto& u) { return u.kind == k; });
    REQUIRE(unit != config.units.end());
    int64_t bytes = 0, padded = 0;
    for (const PoolBucket& bucket : unit->buckets) {
      bytes += 2 * bucket.numel;
      padded += (2 * bucket.numel + 255) / 256 * 256;
    }
    CAPTURE(kind, bytes);
    CHECK(near(bytes, mib));
    total += padded * std::count(config.pattern.begin(), config.pattern.end(), kind);
  }

  const PoolFigures figures = PlanPoolFigures(config);
  CAPTURE(PoolFiguresJson(figures).dump());
  CHECK(near(figures.fixed, stack.fixed));
  CHECK(near(figures.max_pool, stack.max_pool));
  CHECK(near(figures.coloured, stack.coloured));
  CHECK(near(figures.lower_bound, stack.lower_bound));
  CHECK(figures.persistent == total);
  CHECK(figures.packed == figures.lower_bound);
  CHECK(figures.dynamic >= figures.lower_bound);
  CHECK(figures.dynamic < figures.persistent / 10);  // it does reuse memory
}

TEST_CASE("the figures print as the document of plan --pool-only", "[plan][pool_config]") {
  const PoolFigures figures{.dynamic = 1,
                            .persistent = 2,
                            .fixed = 3,
                            .max_pool = 4,
                            .coloured = 5,
                            .packed = 6,
                            .lower_bound = 7};
  REQUIRE(PoolFiguresJson(figures) ==
          json::parse(R"({"pool": {"dynamic": 1, "persistent": 2, "fixed": 3, "max_pool": 4,
                               "coloured": 5, "packed": 6, "lower_bound": 7}})"));
}

}  // namespace
}  // namespace millrace
