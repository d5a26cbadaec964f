// What ranks are started with: the words of mpirun, and the variables of their environment.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace millrace {

struct RankOptions {
  int ranks = 1;
  std::string hostfile;  // as mpirun reads it; "": this host
  bool alone() const { return ranks == 1 && hostfile.empty(); }  // one process, without mpirun
};

// Takes -n N, --ranks N and --hostfile F (also -nN, --ranks=N, --hostfile=F) from the front of a
// command line without the program's name; none where it begins otherwise. Error(kConfig): a value
// is missing or wrong.
std::optional<RankOptions> TakeRankOptions(std::vector<std::string>& words);

using Variables = std::map<std::string, std::string>;

// What ranks under mpirun have besides our own environment. Whatever the user has set stays.
Variables RankVariables();

// Our own program with the words of `command` as ranks. `variables` are RankVariables; those that
// ranks on other hosts need are named to mpirun. `token`: of the ranks' announcements
// (mpirun_words.h).
std::vector<std::string> MpirunCommand(const RankOptions& options, const Variables& variables,
                                       const std::string& token,
                                       const std::vector<std::string>& command);

std::string OwnProgram();  // its path

}  // namespace millrace
