#include "tools/launch/hang_watch.h"

#include <catch2/catch.hpp>

namespace millrace {
namespace {

using std::chrono::milliseconds;

constexpr pid_t kRank0 = 41, kRank1 = 42, kShell = 50;

MpirunFacts Ranks() {
  MpirunFacts facts;
  facts.ranks = {{0, kRank0}, {1, kRank1}};
  facts.world = 2;
  return facts;
}

ProcessLook Mpirun(std::vector<pid_t> children) {
  ProcessLook look;
  look.is_mpirun = true;
  look.children = std::move(children);
  return look;
}

// An mpirun that is looked at every 250 ms.
struct Watched {
  HangWatch watch;
  HangWatch::Time now{};
  // The seconds after which it is found stuck, if it looks so all the time; -1: not in a minute.
  double StuckAfter(const ProcessLook& look, const MpirunFacts& facts, Stuck as) {
    for (const auto begin = now; now - begin < std::chrono::minutes(1); now += milliseconds(250)) {
      const Stuck found = watch.Look(now, look, facts);
      if (found == Stuck::kNo) continue;
      CHECK(found == as);
      return std::chrono::duration<double>(now - begin).count();
    }
    return -1;
  }
  void See(const ProcessLook& look, const MpirunFacts& facts) {
    CHECK(watch.Look(now, look, facts) == Stuck::kNo);
    now += milliseconds(250);
  }
};

TEST_CASE("an mpirun whose ranks have all ended and that does not is stuck", "[launch]") {
  Watched job;
  job.See(Mpirun({kRank0, kRank1}), Ranks());
  CHECK(job.StuckAfter(Mpirun({}), Ranks(), Stuck::kNoRankLeft) == 5);
}

TEST_CASE("an mpirun that still has work is not stuck", "[launch]") {
  MpirunFacts ended = Ranks();
  ended.ended = true;
  const auto never = [](Watched job, const ProcessLook& look, const MpirunFacts& facts) {
    return job.StuckAfter(look, facts, Stuck::kNo) < 0;
  };
  Watched seen_both;
  seen_both.See(Mpirun({kRank0, kRank1}), Ranks());
  CHECK(never(seen_both, Mpirun({kRank0, kRank1}), ended));  // ranks
  ProcessLook other = Mpirun({});
  other.is_mpirun = false;
  CHECK(never(seen_both, other, ended));  // another program, of which nothing is known
  ProcessLook busy = Mpirun({});
  busy.in_lock = false;
  CHECK(never(seen_both, busy, ended));  // it waits for a reader
  for (const char state : {'R', 'D', 'T'}) {
    ProcessLook awake = Mpirun({});
    awake.state = state;
    CHECK(never(seen_both, awake, ended));
  }
  Watched fresh;  // ranks may be on other hosts, or the kernel does not tell children
  CHECK(never(fresh, Mpirun({}), Ranks()));
  CHECK(never(fresh, Mpirun({}), ended));
  Watched seen_one;
  seen_one.See(Mpirun({kRank0}), Ranks());
  CHECK(never(seen_one, Mpirun({}), Ranks()));  // rank 1 is on another host
  MpirunFacts one = Ranks();
  one.ranks.erase(1);
  CHECK(never(seen_both, Mpirun({}), one));  // rank 1 is on its way
  Watched shell;
  shell.See(Mpirun({kShell}), {});
  CHECK(never(shell, Mpirun({}), {}));  // nothing has announced itself
}

TEST_CASE("once mpirun has said that the job ended, a rank elsewhere is none", "[launch]") {
  MpirunFacts ended = Ranks();
  Watched job;
  job.See(Mpirun({kRank0}), ended);
  ended.ended = true;
  CHECK(job.StuckAfter(Mpirun({}), ended, Stuck::kNoRankLeft) == 5);
}

TEST_CASE("an mpirun that waits for another host's daemon after the end is stuck later",
          "[launch]") {
  MpirunFacts ended = Ranks();
  ended.ended = true;
  Watched job;
  job.See(Mpirun({kRank0, kShell}), ended);
  CHECK(job.StuckAfter(Mpirun({kShell}), ended, Stuck::kOtherHost) == 15);
  Watched running;
  running.See(Mpirun({kShell}), Ranks());
  CHECK(running.StuckAfter(Mpirun({kShell}), Ranks(), Stuck::kNo) == -1);  // the job has not ended
  ProcessLook stopped = Mpirun({kShell});
  stopped.state = 'T';
  CHECK(running.StuckAfter(stopped, ended, Stuck::kNo) == -1);
}

TEST_CASE("patience begins anew with each sign of life", "[launch]") {
  Watched job;
  job.See(Mpirun({kRank0, kRank1}), Ranks());
  for (int round = 0; round < 5; ++round) {
    for (int look = 0; look < 18; ++look) job.See(Mpirun({}), Ranks());  // 4.5 s
    job.See(Mpirun({kShell}), Ranks());
  }
  CHECK(job.StuckAfter(Mpirun({}), Ranks(), Stuck::kNoRankLeft) == 5);
}

}  // namespace
}  // namespace millrace
