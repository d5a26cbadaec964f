// What Open MPI's mpirun says on standard error about the end of a job, as it comes: the launcher's
// tools/lib/relay_stderr.pl reads the same sentences.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace millrace {

class MpirunWords {
 public:
  // The next piece of its standard error; a piece may end anywhere.
  void Read(std::string_view text);

  // "host NAME", the one that was first said not to answer any more; "a host" where its name was
  // not said; "" for none. Also said of a host on which a mere rank was lost: mpirun's exit code
  // then tells (128 + N, or the rank's own).
  std::string lost_host() const;
  // Which rank a signal ended; none where that was not said.
  std::optional<int> lost_rank() const { return lost_rank_; }
  // The job has ended, badly; what is left to mpirun is to end itself.
  bool ended() const { return ended_; }

 private:
  void ReadLine();

  std::string line_;  // the begun one, cut off at a length that no sentence of mpirun's has
  std::string host_;
  std::optional<int> lost_rank_;
  bool nameless_ = false, ended_ = false;
};

}  // namespace millrace
