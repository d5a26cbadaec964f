// What the end of a job means: the exit code for whoever started it, and the words. Pure. The table
// of exit codes is in tools/README.md.
#pragma once

#include <optional>
#include <string>

#include "tools/launch/mpirun_words.h"

namespace millrace {

// Why the launcher killed mpirun, if it did (hang_watch.h).
enum class Stuck { kNo, kNoRankLeft, kOtherHost };

struct JobEnd {
  int code = 0;  // of the process that was started, as shells write it: 128 + N for signal N
  bool leader_lost = false;  // the signal ended that process, and was not told by its exit code
  Stuck stuck = Stuck::kNo;
  MpirunFacts said;
};

// What was started.
struct JobKind {
  std::string leader;      // "mpirun", or what else starts the ranks; "" for one process without
  std::string host;        // of this process
  bool announces = false;  // our own command line: a rank that runs has announced itself
  bool has_steps = true;   // training, which saves before it stops
};

struct Verdict {
  int exit_code = 0;
  std::string reason;            // "a rank was killed by SIGKILL"; "" when the job is done
  std::string sentence;          // for people; "" where the job itself has said why it ended
  std::optional<int> lost_rank;  // a signal ended it: somebody else must show its last lines
  // A rank has ended it with a code of the program's, and mpirun has not passed on what it said,
  // as one that was late itself may not have: its log knows.
  bool unsaid = false;
};

// `stop_requests`: to the launcher, passed on to the job.
Verdict Judge(const JobEnd& end, const JobKind& kind, int stop_requests);

// Of the line about an mpirun that was killed; "" for Stuck::kNo.
std::string StuckWords(Stuck stuck);

bool IsSignalCode(int code);         // 128 + N
std::string SignalName(int number);  // "SIGKILL"

inline constexpr int kStoppedAtOnce = 143;  // exit code after a second request

}  // namespace millrace
