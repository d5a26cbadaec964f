#include "runtime/data/restart_log.h"

#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "runtime/data/file_system.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

TEST_CASE("failures and resumptions come back as they were logged", "[data]") {
  const TempDir temp;
  CHECK(ReadRestarts(temp / "").empty());
  LogFailure(temp / "",
             {"2026-11-20T10:15:00Z", "a rank was killed by SIGKILL", 137, 20, 18, true});
  LogResumed(temp / "", 19, 1.75);
  LogFailure(temp / "",
             {"2026-11-20T10:16:00Z", "the supervisor was killed", std::nullopt, 25, 24, true});
  LogFailure(temp / "", {"2026-11-20T10:17:00Z", "bytes \xff of no text", 70, 26, 24, false});
  const std::vector<RecordedFailure> all = ReadRestarts(temp / "");
  REQUIRE(all.size() == 3);
  CHECK(all[0].failure.time == "2026-11-20T10:15:00Z");
  CHECK(all[0].failure.reason == "a rank was killed by SIGKILL");
  CHECK(all[0].failure.exit_code == 137);
  CHECK(all[0].failure.step == 20);
  CHECK(all[0].failure.checkpoint == 18);
  CHECK(all[0].failure.restarts);
  CHECK(all[0].resumed_step == 19);
  CHECK(all[0].seconds == 1.75);
  CHECK(all[1].failure.reason == "the supervisor was killed");
  CHECK_FALSE(all[1].failure.exit_code.has_value());
  CHECK_FALSE(all[1].resumed_step.has_value());
  CHECK_FALSE(all[1].seconds.has_value());
  CHECK(all[2].failure.exit_code == 70);
  CHECK_FALSE(all[2].failure.restarts);
}

TEST_CASE("lines that are none are passed over, a torn last one too", "[data]") {
  const std::vector<RecordedFailure> all = ParseRestarts(
      "{\"event\": \"resumed\", \"step\": 3, \"seconds\": 1}\n"
      "nonsense\n[1]\n{\"event\": 7}\n"
      "{\"event\": \"failed\", \"reason\": 5, \"exit_code\": \"x\", \"step\": 4}\n"
      "{\"event\": \"resumed\", \"step\": 5, \"seconds\": 2.5}\n"
      "{\"event\": \"resumed\", \"step\": 6, \"seconds\": 3.5}\n"
      "{\"event\": \"failed\", \"step\": 9");
  REQUIRE(all.size() == 1);
  CHECK(all[0].failure.step == 4);
  CHECK(all[0].failure.reason.empty());
  CHECK_FALSE(all[0].failure.exit_code.has_value());
  CHECK(all[0].resumed_step == 5);
  CHECK(all[0].seconds == 2.5);
}

TEST_CASE("numbers that do not fit are not known, rather than others", "[data]") {
  const std::vector<RecordedFailure> all = ParseRestarts(
      "{\"event\": \"failed\", \"exit_code\": 4294967433, \"step\": 18446744073709551615, "
      "\"checkpoint\": 7}\n"
      "{\"event\": \"resumed\", \"step\": 9223372036854775808, \"seconds\": 1}\n");
  REQUIRE(all.size() == 1);
  CHECK_FALSE(all[0].failure.exit_code.has_value());
  CHECK(all[0].failure.step == 0);
  CHECK(all[0].failure.checkpoint == 7);
  CHECK_FALSE(all[0].resumed_step.has_value());
}

TEST_CASE("a file that was put aside is left alone", "[data]") {
  const TempDir temp;
  LogFailure(temp / "", {"2026-11-20T10:15:00Z", "first", 137, 20, 18, true});
  FileSystem::Posix().Rename(temp / "restarts.jsonl", temp / "restarts.old-1.jsonl");
  LogFailure(temp / "", {"2026-11-20T10:15:01Z", "second", 137, 21, 18, true});
  const auto all = ReadRestarts(temp / "");
  REQUIRE(all.size() == 1);
  CHECK(all[0].failure.reason == "second");
  RequireError(ErrorCode::kIo, {"restarts.jsonl"}, [&] { LogResumed(temp / "missing", 4, 1.0); });
}

}  // namespace
}  // namespace millrace
