#include "tools/launch/mpirun_words.h"

#include <catch2/catch.hpp>
#include <string>

namespace millrace {
namespace {

// As Open MPI 4.1.4 says it.
const std::string kRule(74, '-');
std::string Frame(const std::string& text) { return kRule + "\n" + text + kRule + "\n"; }

const std::string kKilled = Frame(
    "mpirun noticed that process rank 2 with PID 0 on node east-7 exited on signal 9 (Killed).\n");
const std::string kPrimary = Frame(
    "Primary job  terminated normally, but 1 process returned\n"
    "a non-zero exit code. Per user-direction, the job has been aborted.\n");
const std::string kAborted = Frame(
    "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n"
    "with errorcode 71.\n\n"
    "NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.\n");
const std::string kDetected = Frame(
    "mpirun detected that one or more processes exited with non-zero status, thus causing\n"
    "the job to be terminated. The first process to do so was:\n\n"
    "  Process name: [[18881,1],2]\n  Exit code:    73\n");
const std::string kLost = Frame(
    "ORTE has lost communication with a remote daemon.\n\n"
    "  HNP daemon   : [[64547,0],0] on node oak\n"
    "  Remote daemon: [[64547,0],1] on node elm\n\n"
    "This is usually due to either a failure of the TCP network\n");
const std::string kPeer = Frame(
    "An MPI communication peer process has unexpectedly disconnected.  This\n"
    "usually indicates a failure in the peer process.\n\n"
    "  Local host: oak\n  Local PID:  64\n  Peer host:  ash\n");
const std::string kUnstarted = Frame("ORTE was unable to reliably start one or more daemons.\n");
const std::string kToken = "0123456789abcdef", kOther = "0123456789abcdee";
std::string Rank(const std::string& token, const std::string& numbers) {
  return "\x1emillrace-rank " + token + " " + numbers + "\n";
}
std::string End(const std::string& token, const std::string& code) {
  return "\x1emillrace-end " + token + " " + code + "\n";
}
const std::string kRanks = Rank(kToken, "0 2 41") + Rank(kToken, "1 2 42");
const std::string kEnds = End(kToken, "74");

struct Said {
  std::string shown;
  MpirunFacts facts;
};

Said Read(const std::string& text, size_t piece = 1000) {
  MpirunWords words(kToken);
  Said said;
  for (size_t at = 0; at < text.size(); at += piece)
    said.shown += words.Read(text.substr(at, piece));
  said.shown += words.Release();
  CHECK_FALSE(words.holds());
  said.facts = words.facts();
  return said;
}

TEST_CASE("mpirun's own frames are taken out, and every other byte passes in order", "[launch]") {
  struct Case {
    std::string text, shown;
  };
  const std::string table = Frame("our table\n");
  for (
      const Case& c : {
          Case{"", ""},
          {"a\nb", "a\nb"},
          {"x" + kPrimary + kKilled + "y", "xy"},
          {"a" + kAborted + "b", "ab"},
          {kDetected, ""},
          {"a" + kLost + "b", "ab"},
          {"a" + kPeer + "b", "ab"},
          {kRanks.substr(0, kRanks.size() / 2) + "one\n" + kRanks.substr(kRanks.size() / 2) + "two",
           "one\ntwo"},
          {"50% " + kRanks + "51%", "50% 51%"},
          // Frames and rules that are not mpirun's stay, also when its words follow.
          {table, table},
          {table + kPrimary + "z\n", table + "z\n"},
          {std::string(80, '-') + "\nx\n", std::string(80, '-') + "\nx\n"},
          {std::string(6, '-') + kPrimary + "z", std::string(6, '-') + "z"},
          {kRule + "|" + kRule + "\n", kRule + "|" + kRule + "\n"},
          {kRule + "\nPrimary job  terminated nor", kRule + "\nPrimary job  terminated nor"},
          {kRule + "\nPrimary job " + kRule + "|\n", kRule + "\nPrimary job " + kRule + "|\n"},
          {Rank(kToken, "0 two 41"), Rank(kToken, "0 two 41")},
          {kRanks + "a\n" + kEnds + "b", "a\nb"},
          {End(kToken, "soon"), End(kToken, "soon")},
          {"\x1emillrace-e", "\x1emillrace-e"},
          // Remarks, each a line.
          {"mpirun: Forwarding signal 10 to job\nok\n", "ok\n"},
          {"[east-7:13504] 1 more process has sent help message help-mpi-api.txt / mpi-abort\n"
           "[east-7:13504] 2 more processes have sent help message help-mpi-api.txt / mpi-abort\n"
           "[east-7:13504] Set MCA parameter \"orte_base_help_aggregate\" to 0 to see all\n"
           "[east-7:13504] [[31437,0],0] ORTE_ERROR_LOG: Data unpack would read past end of buffer "
           "in file ../../../orte/util/show_help.c at line 501\n"
           "[east-7:13504] our own\n[12:30] mpirun: x\n",
           "[east-7:13504] our own\n[12:30] mpirun: x\n"},
      })
    for (const size_t piece : {1, 7, 1000}) {
      INFO(c.text << "\nin pieces of " << piece);
      CHECK(Read(c.text, piece).shown == c.shown);
    }
}

TEST_CASE("what mpirun says becomes facts, in pieces of any size", "[launch]") {
  for (const size_t piece : {1, 7, 1000}) {
    INFO("pieces of " << piece);
    const MpirunFacts killed = Read(kRanks + kPrimary + kKilled, piece).facts;
    CHECK(killed.ranks == std::map<int, pid_t>{{0, 41}, {1, 42}});
    CHECK(killed.world == 2);
    REQUIRE(killed.lost_rank);
    CHECK(killed.lost_rank->rank == 2);
    CHECK(killed.lost_rank->host == "east-7");
    CHECK(killed.lost_rank->signal == 9);
    CHECK_FALSE(killed.code);
    CHECK(killed.ended);
    CHECK(Read(kAborted, piece).facts.code == 71);
    CHECK(Read(kDetected, piece).facts.code == 73);
    CHECK(Read(kDetected + kAborted, piece).facts.code == 73);  // the first counts
    CHECK(Read(kDetected, piece).facts.ended);
    CHECK(Read(kEnds + kAborted, piece).facts.code == 71);
    CHECK(Read(kEnds + End(kToken, "75"), piece).facts.announced_code == 74);
    CHECK_FALSE(Read(kRanks + kEnds, piece).facts.code);
    CHECK(Read(kRanks + kEnds, piece).facts.ended);
    CHECK_FALSE(Read(kRanks, piece).facts.ended);
    CHECK(Read(kLost, piece).facts.lost_host == "host elm");
    CHECK(Read(kLost, piece).facts.ended);
    CHECK(Read(kPeer, piece).facts.lost_host == "host ash");
    CHECK_FALSE(Read(kPeer, piece).facts.ended);  // a rank's words: mpirun's may follow
    CHECK(Read(kPeer + kLost, piece).facts.lost_host == "host ash");
  }
}

TEST_CASE("a daemon that ended while its ranks ran is a lost host, one that never started is not",
          "[launch]") {
  const Said before = Read("a" + kUnstarted + "b");
  CHECK(before.shown == "a" + kUnstarted + "b");
  CHECK(before.facts.lost_host.empty());
  CHECK_FALSE(before.facts.ended);
  const Said later = Read(kRanks + kUnstarted + "b");
  CHECK(later.shown == "b");
  CHECK(later.facts.lost_host == "a host");
  CHECK(later.facts.ended);
  CHECK(Read(kRanks + kUnstarted + kPeer).facts.lost_host == "host ash");  // a name says more
}

TEST_CASE("an announcement without the job's token is text like any other", "[launch]") {
  for (const size_t piece : {1, 7, 1000})
    for (const std::string& forged :
         {End(kOther, "74"), Rank(kOther, "0 2 41"), std::string("\x1emillrace-end 74\n"),
          std::string("\x1emillrace-rank 0 2 41\n"), End("", "74")}) {
      INFO(forged);
      const Said said = Read("a" + forged + "b", piece);
      CHECK(said.shown == "a" + forged + "b");
      CHECK_FALSE(said.facts.ended);
      CHECK_FALSE(said.facts.announced_code);
      CHECK(said.facts.ranks.empty());
      CHECK(Read(forged + kRanks + kEnds, piece).facts.announced_code == 74);
    }
  MpirunWords nobody;  // of a job whose ranks announce nothing
  CHECK(nobody.Read(kEnds) == kEnds);
  CHECK_FALSE(nobody.facts().ended);
  CHECK(NewRankToken().size() == kToken.size());
  CHECK(NewRankToken() != NewRankToken());
}

TEST_CASE("other words are no facts", "[launch]") {
  for (const std::string& text :
       {std::string("step 1/2 loss 3\n"), std::string(100000, 'x') + "\n", std::string(100000, '-'),
        std::string(100000, '['), "a rank: " + kLost.substr(kRule.size() + 1, 48) + "\n",
        kRule + "\nMPI_ABORT was invoked on rank" + std::string(100000, 'x') + "\n" + kRule +
            "\n"}) {
    const Said said = Read(text);
    CHECK(said.shown == text);
    CHECK(said.facts.lost_host.empty());
    CHECK_FALSE(said.facts.ended);
    CHECK_FALSE(said.facts.code);
  }
}

TEST_CASE("what is begun and may become mpirun's words is held back until it is released",
          "[launch]") {
  MpirunWords words;
  CHECK(words.Read("50% " + kKilled.substr(0, 40)) == "50% ");
  CHECK(words.holds());
  CHECK(words.Read(kKilled.substr(40)) == "");
  CHECK_FALSE(words.holds());
  CHECK(words.Read("51% ----------") == "51% ");
  CHECK(words.holds());
  CHECK(words.Release() == "----------");
  CHECK_FALSE(words.holds());
}

TEST_CASE("a rank announces itself where mpirun has started it", "[launch]") {
  ::unsetenv("OMPI_COMM_WORLD_RANK");
  std::vector<std::string> words = {std::string(kAsRank) + kToken, "train", "a.json"};
  CHECK(AnnounceRank(words));
  CHECK(words == std::vector<std::string>{"train", "a.json"});
  CHECK_FALSE(AnnounceRank(words));
  CHECK(words.size() == 2);
}

}  // namespace
}  // namespace millrace
