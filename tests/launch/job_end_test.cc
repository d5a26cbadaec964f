#include "tools/launch/job_end.h"

#include <signal.h>

#include <catch2/catch.hpp>

namespace millrace {
namespace {

constexpr int kSigkilled = 128 + SIGKILL, kSegfault = 128 + SIGSEGV;

const JobKind kMpirun = {"mpirun", "elm", true};
const JobKind kOther = {"mpirun", "elm", false};  // of which nothing is known, as with --mpirun
const JobKind kAlone = {"", "elm", false};

MpirunFacts Running() {
  MpirunFacts said;
  said.ranks = {{0, 41}, {1, 42}};
  said.world = 2;
  return said;
}

JobEnd End(int code) {
  JobEnd end;
  end.code = code;
  end.said = Running();
  return end;
}

JobEnd Lost(int signal) {
  JobEnd end = End(128 + signal);
  end.said.lost_rank = {1, "oak", signal};
  end.said.ended = true;
  return end;
}

JobEnd Said(int code, int of_mpirun) {
  JobEnd end = End(of_mpirun);
  end.leader_lost = IsSignalCode(of_mpirun);
  end.said.code = code;
  end.said.ended = true;
  return end;
}

JobEnd WithHost(JobEnd end) {
  end.said.lost_host = "host oak";
  return end;
}

JobEnd Killed(Stuck stuck, JobEnd end) {
  end.code = kSigkilled;
  end.leader_lost = true;
  end.stuck = stuck;
  return end;
}

TEST_CASE("the program's own codes pass through without a word", "[launch]") {
  for (const int code : {0, 2, 3, 4, 5, 70, 71, 72, 73, 74, 75, 77}) {
    INFO("exit code " << code);
    for (const JobKind& kind : {kMpirun, kOther, kAlone}) {
      const Verdict verdict = Judge(End(code), kind, 0);
      CHECK(verdict.exit_code == code);
      CHECK(verdict.sentence.empty());
      CHECK(verdict.reason.empty() == (code == 0));
      CHECK_FALSE(verdict.lost_rank);
    }
    CHECK(Judge(Said(code, code), kMpirun, 1).exit_code == code);
  }
  CHECK(Judge(Said(71, 71), kMpirun, 0).reason == "mpirun ended with exit code 71 (timeout)");
  CHECK(Judge(End(70), kOther, 0).reason == "mpirun ended with exit code 70 (internal)");
}

TEST_CASE("words that mpirun has not passed on are missed", "[launch]") {
  for (const int code : {2, 3, 4, 5, 70, 71, 72, 73, 74, 77}) {
    INFO("exit code " << code);
    JobEnd end = End(code);
    CHECK(Judge(end, kMpirun, 0).unsaid);
    CHECK(Judge(Said(code, kSegfault), kMpirun, 1).unsaid);
    CHECK_FALSE(Judge(end, kOther, 0).unsaid);  // it may announce nothing
    CHECK_FALSE(Judge(end, kAlone, 0).unsaid);
    end.said.announced_code = code;
    CHECK_FALSE(Judge(end, kMpirun, 0).unsaid);
  }
  // No rank's word was to come: success, a stop on request, a code of mpirun's own, a signal, ranks
  // that never ran.
  CHECK_FALSE(Judge(End(0), kMpirun, 0).unsaid);
  CHECK_FALSE(Judge(End(75), kMpirun, 1).unsaid);
  CHECK_FALSE(Judge(End(213), kMpirun, 0).unsaid);
  CHECK_FALSE(Judge(Lost(SIGKILL), kMpirun, 0).unsaid);
  JobEnd never;
  never.code = 71;
  CHECK_FALSE(Judge(never, kMpirun, 0).unsaid);
}

TEST_CASE("a rank that a signal ended is named", "[launch]") {
  const Verdict killed = Judge(Lost(SIGKILL), kMpirun, 0);
  CHECK(killed.exit_code == 72);
  CHECK(killed.reason == "a rank was killed by SIGKILL");
  CHECK(killed.sentence ==
        "rank 1 (pid 42) on oak was killed by SIGKILL. The job has been stopped; the same command "
        "goes on from the last checkpoint, if there is one");
  CHECK(killed.lost_rank == 1);
  const Verdict crashed = Judge(Lost(SIGSEGV), kMpirun, 0);
  CHECK(crashed.exit_code == 70);
  CHECK(crashed.reason == "a rank crashed with SIGSEGV");
  CHECK(crashed.sentence ==
        "rank 1 (pid 42) on oak crashed with SIGSEGV: a bug in Millrace. The job has been stopped");
  JobEnd nameless = Lost(SIGKILL);
  nameless.said.ranks.clear();
  CHECK(Judge(nameless, kMpirun, 0).sentence.starts_with("rank 1 (pid ?) on oak was killed"));
  // It counts before all that mpirun says of itself afterwards.
  CHECK(Judge(WithHost(Lost(SIGKILL)), kMpirun, 0).exit_code == 72);
  CHECK(Judge(Killed(Stuck::kNoRankLeft, Lost(SIGSEGV)), kMpirun, 0).exit_code == 70);
}

TEST_CASE("one process that a signal ended is rank 0", "[launch]") {
  JobEnd end = End(kSigkilled);
  end.leader_lost = true;
  const Verdict killed = Judge(end, kAlone, 0);
  CHECK(killed.exit_code == 72);
  CHECK(killed.reason == "the run was killed by SIGKILL");
  CHECK(killed.sentence.starts_with("rank 0 on elm was killed by SIGKILL. "));
  CHECK(killed.lost_rank == 0);
  end.code = 128 + SIGABRT;
  CHECK(Judge(end, kAlone, 0).exit_code == 70);
  end.code = 128 + SIGTERM;
  CHECK(Judge(end, kAlone, 2).exit_code == 143);
}

TEST_CASE("requests to stop explain what signals and mpirun's own codes do not", "[launch]") {
  const Verdict early = Judge(Lost(SIGUSR1), kMpirun, 1);
  CHECK(early.exit_code == 75);
  CHECK(early.sentence == "stopped before the first step; there was nothing to save");
  JobKind without_steps = kMpirun;
  without_steps.has_steps = false;
  CHECK(Judge(Lost(SIGUSR1), without_steps, 1).sentence == "stopped on request");
  CHECK(Judge(Lost(SIGUSR1), kMpirun, 0).exit_code == 72);  // somebody else's signal
  CHECK(Judge(Lost(SIGTERM), kMpirun, 1).exit_code == 72);
  const Verdict twice = Judge(Lost(SIGTERM), kMpirun, 2);
  CHECK(twice.exit_code == 143);
  CHECK(twice.sentence ==
        "stopped at once, on the second request; the last checkpoint is what there is");
  CHECK(Judge(End(1), kMpirun, 2).exit_code == 143);
  CHECK(Judge(WithHost(End(205)), kMpirun, 2).exit_code == 143);
  JobEnd killed = End(kSigkilled);
  killed.leader_lost = true;
  CHECK(Judge(killed, kMpirun, 3).exit_code == 143);
  CHECK(Judge(Said(75, 75), kMpirun, 2).exit_code == 75);  // it was saved all the same
  CHECK(Judge(End(0), kMpirun, 2).exit_code == 0);
}

TEST_CASE("ranks that never ran", "[launch]") {
  for (const int code : {1, 213, kSegfault}) {
    JobEnd end;
    end.code = code;
    const Verdict verdict = Judge(end, kMpirun, 0);
    CHECK(verdict.exit_code == 72);
    CHECK(verdict.sentence == "mpirun could not start the ranks (its exit code " +
                                  std::to_string(code) + "; its messages are above)");
    CHECK(Judge(end, kMpirun, 1).exit_code == 75);
    CHECK(Judge(end, kMpirun, 1).sentence == "stopped before the ranks started; nothing to save");
  }
  // Of another program nobody knows whether it ran them: its code is the job's.
  JobEnd end;
  end.code = 1;
  CHECK(Judge(end, {"false", "elm", false}, 0).reason == "false ended with exit code 1");
  end.code = 3;
  CHECK(Judge(end, kOther, 0).exit_code == 3);
  CHECK(Judge(end, kMpirun, 0).exit_code == 72);
}

TEST_CASE("a host that was lost, and one of which a mere rank was", "[launch]") {
  const Verdict lost = Judge(WithHost(End(205)), kMpirun, 0);
  CHECK(lost.exit_code == 72);
  CHECK(lost.reason == "host oak was lost");
  CHECK(lost.sentence ==
        "host oak was lost. The job has been stopped; the same command goes on from the last "
        "checkpoint, if there is one");
  CHECK(Judge(WithHost(Killed(Stuck::kOtherHost, End(0))), kMpirun, 0).reason ==
        "host oak was lost");
  // mpirun's exit code tells, or the rank's own word.
  CHECK(Judge(WithHost(End(71)), kMpirun, 0).reason == "mpirun ended with exit code 71 (timeout)");
  CHECK(Judge(WithHost(End(kSigkilled)), kMpirun, 0).reason == "a rank was killed by SIGKILL");
  CHECK(Judge(WithHost(Said(71, 71)), kMpirun, 0).exit_code == 71);
  CHECK(Judge(WithHost(Said(1, 1)), kMpirun, 0).reason == "mpirun ended with exit code 1");
}

TEST_CASE("an mpirun that crashes or hangs on its way out does not hide the job's code",
          "[launch]") {
  CHECK(Judge(Said(71, kSegfault), kMpirun, 0).exit_code == 71);
  CHECK(Judge(Said(71, kSegfault), kMpirun, 0).reason ==
        "mpirun ended with exit code 71 (timeout)");
  for (const Stuck stuck : {Stuck::kNoRankLeft, Stuck::kOtherHost}) {
    CHECK(Judge(Killed(stuck, Said(73, 73)), kMpirun, 0).exit_code == 73);
    // A rank's own word, where mpirun has not come to passing it on.
    JobEnd announced = Killed(stuck, End(0));
    announced.said.announced_code = 71;
    CHECK(Judge(announced, kMpirun, 0).exit_code == 71);
    CHECK(Judge(WithHost(announced), kMpirun, 0).exit_code == 72);
    announced.said.announced_code = 0;  // anybody may write to standard error
    CHECK(Judge(announced, kMpirun, 0).exit_code == 76);
    const Verdict unknown = Judge(Killed(stuck, End(0)), kMpirun, 0);
    CHECK(unknown.exit_code == 76);
    CHECK(unknown.reason == "mpirun did not end although no rank was left, and was killed");
    CHECK(unknown.sentence ==
          "what code the job ended with is not known; the same command goes on, or says that the "
          "run is complete");
    CHECK_FALSE(StuckWords(stuck).empty());
  }
  CHECK(StuckWords(Stuck::kNo).empty());
  // Nobody has said anything: the signal is all there is.
  JobEnd crashed = End(kSegfault);
  crashed.leader_lost = true;
  CHECK(Judge(crashed, kMpirun, 0).exit_code == 70);
  CHECK(Judge(crashed, kMpirun, 0).sentence.starts_with("mpirun crashed with SIGSEGV"));
  crashed.code = kSigkilled;
  CHECK(Judge(crashed, kOther, 0).reason == "mpirun was killed by SIGKILL");
}

TEST_CASE("a code of mpirun's own is a rank that was lost", "[launch]") {
  for (const int code : {1, 9, 205, 255}) {
    INFO("exit code " << code);
    const Verdict verdict = Judge(End(code), kMpirun, 0);
    CHECK(verdict.exit_code == 72);
    CHECK(verdict.reason == "mpirun ended with exit code " + std::to_string(code));
    CHECK(verdict.sentence.starts_with(verdict.reason + ". The job has been stopped; "));
  }
}

}  // namespace
}  // namespace millrace
