#include "tools/launch/restart_policy.h"

#include <signal.h>

#include <catch2/catch.hpp>

namespace millrace {
namespace {

constexpr int kKilled = 128 + SIGKILL, kCrashed = 128 + SIGSEGV;

// The verdicts of job_end_test that these tests are about.
Verdict Ended(int code) {
  switch (code) {
    case kKilled:
      return {72, "a rank was killed by SIGKILL", "", 1};
    case kCrashed:
      return {70, "a rank crashed with SIGSEGV", "", 1};
    case 0:
      return {};
    default:
      return {code, "mpirun ended", "", {}};
  }
}

AttemptEnd End(int code, int64_t step, int64_t checkpoint, bool trained = true) {
  AttemptEnd end;
  end.verdict = Ended(code);
  end.step = step;
  end.checkpoint = checkpoint;
  end.trained = trained;
  return end;
}

TEST_CASE("what the same command would only repeat is not started again", "[launch]") {
  for (const int code : {0, 2, 3, 4, 5, 73, 75}) {
    RestartPolicy policy(9, 0);
    const Decision decision = policy.After(End(code, 7, 5));
    INFO("exit code " << code);
    CHECK_FALSE(decision.restart);
    CHECK(decision.is_final);
    CHECK(decision.stop.empty());
  }
}

TEST_CASE("what may go better the next time is started again", "[launch]") {
  for (const int code : {kKilled, kCrashed, 70, 71, 72, 74, 76, 77}) {
    RestartPolicy policy(9, 0);
    const Decision decision = policy.After(End(code, 7, 5));
    INFO("exit code " << code);
    CHECK(decision.restart);
    CHECK_FALSE(decision.is_final);
    CHECK(decision.wait_s == 0);
    CHECK(policy.restarts() == 1);
  }
}

TEST_CASE("the same step does not fail twice without progress, however the failures look",
          "[launch]") {
  RestartPolicy policy(99, 0);
  CHECK(policy.After(End(kKilled, 7, 5)).restart);
  CHECK(policy.After(End(kKilled, 6, 5)).restart);  // another step
  const Decision decision = policy.After(End(kCrashed, 7, 5));
  CHECK_FALSE(decision.restart);
  CHECK(decision.stop == "it ended twice after step 7 without progress in between");
  CHECK_FALSE(decision.is_final);
}

TEST_CASE("a further step or a newer checkpoint is progress", "[launch]") {
  RestartPolicy policy(99, 0);
  CHECK(policy.After(End(kKilled, 7, 5)).restart);
  CHECK(policy.After(End(kKilled, 8, 5)).restart);
  CHECK(policy.After(End(kKilled, 7, 5)).restart);  // 8 came in between
  CHECK(policy.After(End(kKilled, 7, 6)).restart);  // a checkpoint did
  CHECK_FALSE(policy.After(End(kKilled, 7, 6)).restart);
  // What an earlier supervisor had reached is no progress of this one's.
  RestartPolicy later(99, 20);
  CHECK(later.After(End(kKilled, 20, 20)).restart);
  CHECK_FALSE(later.After(End(kKilled, 20, 20)).restart);
}

TEST_CASE("three starts in a row that come to no step are the end, with pauses before it",
          "[launch]") {
  RestartPolicy policy(99, 20);
  const AttemptEnd start = End(1, 20, 20, /*trained=*/false);
  double waited = 0;
  for (int attempt = 1; attempt < kFruitlessStarts; ++attempt) {
    const Decision decision = policy.After(start);
    CHECK(decision.restart);
    CHECK(decision.wait_s > waited);
    waited = decision.wait_s;
  }
  const Decision decision = policy.After(start);
  CHECK_FALSE(decision.restart);
  CHECK(decision.stop == "3 attempts in a row ended before their first step");

  RestartPolicy mixed(99, 20);
  for (int64_t step = 21; step < 30; ++step) {
    CHECK(mixed.After(start).restart);
    CHECK(mixed.After(start).restart);
    CHECK(mixed.After(End(kKilled, step, 20)).restart);
  }
}

TEST_CASE("restarts are counted, whatever the progress", "[launch]") {
  RestartPolicy policy(3, 0);
  for (int64_t step = 1; step <= 3; ++step) CHECK(policy.After(End(kKilled, step, step)).restart);
  const Decision decision = policy.After(End(kKilled, 4, 4));
  CHECK_FALSE(decision.restart);
  CHECK(decision.stop == "it was restarted 3 times (--max-restarts)");
  RestartPolicy never(0, 0);
  CHECK_FALSE(never.After(End(71, 4, 4)).restart);
}

}  // namespace
}  // namespace millrace
