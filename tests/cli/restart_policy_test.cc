#include "tools/cli/restart_policy.h"

#include <signal.h>

#include <catch2/catch.hpp>

namespace millrace {
namespace {

constexpr int kKilled = 128 + SIGKILL;

AttemptEnd End(int code, int64_t step, int64_t checkpoint, bool trained = true) {
  AttemptEnd end;
  end.code = code;
  end.step = step;
  end.checkpoint = checkpoint;
  end.trained = trained;
  return end;
}

TEST_CASE("what the same command would only repeat is not started again", "[cli]") {
  struct Case {
    int code, exit_code;
  };
  for (const Case c : {Case{0, 0}, {2, 2}, {3, 3}, {4, 4}, {5, 5}, {73, 73}, {75, 75}}) {
    RestartPolicy policy("mpirun", 9, 0);
    const Decision decision = policy.After(End(c.code, 7, 5));
    INFO("exit code " << c.code);
    CHECK_FALSE(decision.restart);
    CHECK(decision.exit_code == c.exit_code);
    CHECK(decision.reason.empty() == (c.code == 0));
  }
}

TEST_CASE("what may go better the next time is started again, with its reason", "[cli]") {
  struct Case {
    AttemptEnd end;
    const char* reason;
  };
  AttemptEnd mpirun_lost = End(kKilled, 7, 5), hung = End(kKilled, 7, 5);
  AttemptEnd host_lost = End(205, 7, 5), timeout = End(71, 7, 5), rank_lost = End(kKilled, 7, 5);
  for (AttemptEnd* end : {&host_lost, &timeout, &rank_lost}) end->lost_host = "host elm";
  mpirun_lost.leader_lost = true;
  hung.hung = true;
  for (const Case& c : {Case{End(kKilled, 7, 5), "a rank was killed by SIGKILL"},
                        {mpirun_lost, "mpirun was killed by SIGKILL"},
                        {hung, "mpirun did not end although no rank was left, and was killed"},
                        {End(128 + SIGSEGV, 7, 5), "a rank crashed with SIGSEGV"},
                        {host_lost, "host elm was lost"},
                        {timeout, "mpirun ended with exit code 71 (timeout)"},
                        {rank_lost, "a rank was killed by SIGKILL"},
                        {End(70, 7, 5), "mpirun ended with exit code 70 (internal)"},
                        {End(71, 7, 5), "mpirun ended with exit code 71 (timeout)"},
                        {End(72, 7, 5), "mpirun ended with exit code 72 (peer_lost)"},
                        {End(74, 7, 5), "mpirun ended with exit code 74 (io)"},
                        {End(77, 7, 5), "mpirun ended with exit code 77 (device)"},
                        {End(1, 7, 5), "mpirun ended with exit code 1"}}) {
    RestartPolicy policy("mpirun", 9, 0);
    const Decision decision = policy.After(c.end);
    CHECK(decision.restart);
    CHECK(decision.reason == c.reason);
    CHECK(decision.wait_s == 0);
    CHECK(policy.restarts() == 1);
  }
}

TEST_CASE("the same step does not fail twice without progress, however the failures look",
          "[cli]") {
  RestartPolicy policy("mpirun", 99, 0);
  CHECK(policy.After(End(kKilled, 7, 5)).restart);
  CHECK(policy.After(End(kKilled, 6, 5)).restart);  // another step
  const Decision decision = policy.After(End(128 + SIGSEGV, 7, 5));
  CHECK_FALSE(decision.restart);
  CHECK(decision.stop == "it ended twice after step 7 without progress in between");
  CHECK(decision.reason == "a rank crashed with SIGSEGV");
  CHECK(decision.exit_code == 70);
}

TEST_CASE("a further step or a newer checkpoint is progress", "[cli]") {
  RestartPolicy policy("mpirun", 99, 0);
  CHECK(policy.After(End(kKilled, 7, 5)).restart);
  CHECK(policy.After(End(kKilled, 8, 5)).restart);
  CHECK(policy.After(End(kKilled, 7, 5)).restart);  // 8 came in between
  CHECK(policy.After(End(kKilled, 7, 6)).restart);  // a checkpoint did
  CHECK_FALSE(policy.After(End(kKilled, 7, 6)).restart);
  // What an earlier supervisor had reached is no progress of this one's.
  RestartPolicy later("mpirun", 99, 20);
  CHECK(later.After(End(kKilled, 20, 20)).restart);
  CHECK_FALSE(later.After(End(kKilled, 20, 20)).restart);
}

TEST_CASE("three starts in a row that come to no step are the end, with pauses before it",
          "[cli]") {
  RestartPolicy policy("mpirun", 99, 20);
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
  CHECK(decision.exit_code == 72);

  RestartPolicy mixed("mpirun", 99, 20);
  for (int64_t step = 21; step < 30; ++step) {
    CHECK(mixed.After(start).restart);
    CHECK(mixed.After(start).restart);
    CHECK(mixed.After(End(kKilled, step, 20)).restart);
  }
}

TEST_CASE("a code of mpirun's own is a rank that was lost", "[cli]") {
  for (const int code : {1, 9, 205, 255}) {
    RestartPolicy never("mpirun", 0, 0);
    INFO("exit code " << code);
    CHECK(never.After(End(code, 4, 4)).exit_code == 72);
  }
}

TEST_CASE("restarts are counted, whatever the progress", "[cli]") {
  RestartPolicy policy("mpirun", 3, 0);
  for (int64_t step = 1; step <= 3; ++step) CHECK(policy.After(End(kKilled, step, step)).restart);
  const Decision decision = policy.After(End(kKilled, 4, 4));
  CHECK_FALSE(decision.restart);
  CHECK(decision.stop == "it was restarted 3 times (--max-restarts)");
  CHECK(decision.exit_code == 72);
  RestartPolicy never("the run", 0, 0);
  CHECK_FALSE(never.After(End(71, 4, 4)).restart);
}

}  // namespace
}  // namespace millrace
