// Counters in a checkpoint: by name, and as versions before names saved them.
#include "runtime/run/checkpoint/saved_state.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

using Catch::Matchers::Contains;
using Json = nlohmann::json;

// Each counter is another number.
const StepCounters kCounters = {
    .kernels = {.concatenated_bytes = 1, .cast_bytes = 2, .copied_bytes = 3},
    .comm = {.all_gathers = 4,
             .reduce_scatters = 5,
             .all_reduces = 6,
             .gathered_bytes = 7,
             .reduced_bytes = 8,
             .all_reduced_bytes = 9,
             .all_to_alls = 11,
             .exchanged_bytes = 12},
    .graph_launches = 10};

std::string Refusal(const Json& json) {
  try {
    CountersFrom(json);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kCheckpoint);
    return error.what();
  }
  return "";
}

TEST_CASE("counters are saved by name", "[exec][saved_state]") {
  const Json saved = CountersJson(kCounters);
  CHECK(saved == Json{{"bytes_concatenated", 1},
                      {"bytes_cast", 2},
                      {"bytes_copied", 3},
                      {"gathers", 4},
                      {"reduces", 5},
                      {"all_reduces", 6},
                      {"bytes_gathered", 7},
                      {"bytes_reduced", 8},
                      {"bytes_all_reduced", 9},
                      {"all_to_alls", 11},
                      {"bytes_exchanged", 12},
                      {"graph_launches", 10}});
  const SavedCounters read = CountersFrom(saved);
  CHECK(read.counters == kCounters);
  CHECK(read.missing.empty());
  CHECK(read.unknown.empty());
}

// Whoever adds a counter to the structs gives it a name, too, or it would be lost on the way.
TEST_CASE("every counter has a name", "[exec][saved_state]") {
  CHECK(CountersJson({}).size() * sizeof(int64_t) == sizeof(StepCounters));
}

TEST_CASE("the list that versions before names saved is read", "[exec][saved_state]") {
  const SavedCounters read = CountersFrom(Json{1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  StepCounters expected = kCounters;
  expected.comm.all_to_alls = expected.comm.exchanged_bytes = 0;
  CHECK(read.counters == expected);
  CHECK(read.missing.empty());
  CHECK(read.unknown.empty());
}

TEST_CASE("a counter that another version lacks or adds leaves the others as they are",
          "[exec][saved_state]") {
  Json saved = CountersJson(kCounters);
  saved.erase("gathers");
  saved["tokens_routed"] = 5;
  const SavedCounters read = CountersFrom(saved);
  StepCounters expected = kCounters;
  expected.comm.all_gathers = 0;
  CHECK(read.counters == expected);
  CHECK(read.missing == std::vector<std::string>{"gathers"});
  CHECK(read.unknown == std::vector<std::string>{"tokens_routed"});
}

TEST_CASE("what are no counters is refused with what is expected", "[exec][saved_state]") {
  CHECK_THAT(Refusal(Json{1, 2, 3}), Contains("holds 3 values; 10 are expected"));
  CHECK_THAT(Refusal("many"), Contains("counters are \"many\"; an object"));
  for (const Json& wrong : {Json("7"), Json(7.5), Json()}) {
    Json saved = CountersJson(kCounters);
    saved["gathers"] = wrong;
    CHECK_THAT(Refusal(saved),
               Contains(fmt::format("counter gathers is {}; an integer", DumpJson(wrong))));
  }
}

}  // namespace
}  // namespace millrace
