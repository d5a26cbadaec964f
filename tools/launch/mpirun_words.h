// What Open MPI's mpirun says on standard error about its job, taken out of the text that it and
// its ranks write there, and kept as facts. Pure.
//
// mpirun frames what it has to say in two lines of 74 dashes. A frame is taken out only when its
// text is one that is known (mpirun_words.cc lists them); so are mpirun's remarks about signals and
// repeated messages, and a rank's own announcements. Every other byte passes, in order.
//
// A rank can write any text there, as data that it prints. An announcement therefore has the job's
// token in it, which nobody else knows; without it, it is text like any other. mpirun's own frames
// have nothing of the kind: a rank that prints one is taken for mpirun.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace {

struct MpirunFacts {
  std::map<int, pid_t> ranks;  // that have announced themselves, each with its process
  int world = 0;               // as they say; 0: none has yet
  struct LostRank {
    int rank = 0;
    std::string host;
    int signal = 0;
  };
  std::optional<LostRank> lost_rank;  // the first one of which mpirun said that a signal ended it
  std::optional<int> code;            // with which, as it said first, a rank ended the job
  std::optional<int> announced_code;  // with which a rank said itself that it ends, or ends the job
  // "host NAME", the first one that was said not to answer; "a host" where its name was not said;
  // "" for none. Also said of a host on which a mere rank was lost.
  std::string lost_host;
  bool ended = false;  // the job has ended, badly; what is left to mpirun is to end itself
};

class MpirunWords {
 public:
  // `token`: of the job's ranks (NewRankToken); "": nobody announces anything.
  explicit MpirunWords(std::string token = "") : token_(std::move(token)) {}

  // The next piece of standard error, which may end anywhere. Returns what of the text is to be
  // shown by now.
  std::string Read(std::string_view piece);

  // What may become words of mpirun's when more comes is held back. Whoever reads asks for it after
  // a moment without more, and at the end.
  bool holds() const { return !held_.empty(); }
  std::string Release();

  const MpirunFacts& facts() const { return facts_; }

 private:
  bool Take(std::string_view words);
  void TakeFrame(const std::string& text);

  const std::string token_;
  std::string held_;
  MpirunFacts facts_;
};

// A launcher has a rank's program started with this and the job's token as its first word. Such a
// rank says on standard error which process it is, as mpirun itself names a lost rank with "PID 0".
inline constexpr std::string_view kAsRank = "--as-rank=";

// Another one for each job: 16 hexadecimal digits.
std::string NewRankToken();

// For the program's main(): removes that word from the front of `words`, the arguments; whether it
// was there. Says the announcement where Open MPI started this process.
bool AnnounceRank(std::vector<std::string>& words);

// For a rank that is about to end with a code other than 0 and has said why: whoever reads this has
// read that, too. mpirun may never say so: towards a host that has fallen silent it waits for an
// answer first. Nothing where AnnounceRank has not spoken.
void AnnounceEnd(int exit_code) noexcept;

}  // namespace millrace
