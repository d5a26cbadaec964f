#include "tools/launch/rank_command.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "runtime/base/error.h"
#include "tools/launch/mpirun_words.h"

namespace millrace {
namespace {

constexpr int kMostRanks = 99999;

int RanksIn(const std::string& text) {
  const bool digits = !text.empty() && text.size() <= 5 && text.front() != '0' &&
                      text.find_first_not_of("0123456789") == text.npos;
  MR_REQUIRE(ErrorCode::kConfig, digits,
             "-n {}: the number of ranks is a whole number from 1 to {}", text, kMostRanks);
  return std::stoi(text);
}

std::string HostfileIn(const std::string& path) {
  MR_REQUIRE(ErrorCode::kConfig, path.empty() || ::access(path.c_str(), R_OK) == 0,
             "--hostfile {}: no such readable file", path);
  return path;
}

// The value of the option that `words` begins with, if it is one of these; it is removed.
std::optional<std::string> TakeValue(std::vector<std::string>& words,
                                     const std::vector<std::string>& names) {
  const std::string word = words.front();
  for (const std::string& name : names) {
    const bool is_long = name.starts_with("--");
    if (word == name) {
      MR_REQUIRE(ErrorCode::kConfig, words.size() > 1, "{} needs a value", name);
      const std::string value = words[1];
      words.erase(words.begin(), words.begin() + 2);
      return value;
    }
    const std::string prefix = is_long ? name + "=" : name;
    if (!word.starts_with(prefix)) continue;
    words.erase(words.begin());
    return word.substr(prefix.size());
  }
  return std::nullopt;
}

// Columns of the terminal; those of a line where there is none.
std::string Columns() {
  winsize size = {};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return std::to_string(known ? size.ws_col : 80);
}

}  // namespace

std::optional<RankOptions> TakeRankOptions(std::vector<std::string>& words) {
  std::optional<RankOptions> options;
  while (!words.empty()) {
    std::optional<RankOptions> next = options ? options : RankOptions{};
    if (const auto ranks = TakeValue(words, {"-n", "--ranks"}))
      next->ranks = RanksIn(*ranks);
    else if (const auto hostfile = TakeValue(words, {"--hostfile"}))
      next->hostfile = HostfileIn(*hostfile);
    else
      break;
    options = next;
  }
  return options;
}

Variables RankVariables() {
  Variables variables;
  const auto set = [&](const char* name, const std::string& value) {
    if (std::getenv(name) == nullptr) variables[name] = value;
  };
  set("OPENBLAS_NUM_THREADS", "1");
  set("OMP_NUM_THREADS", "1");
  // A rank's standard output is a pseudo-terminal of mpirun's whatever ours is, and its standard
  // error a pipe.
  set("MILLRACE_STDOUT_TTY", ::isatty(STDOUT_FILENO) == 1 ? "1" : "0");
  set("MILLRACE_STDERR_TTY", ::isatty(STDERR_FILENO) == 1 ? "1" : "0");
  set("COLUMNS", Columns());
  // Reading a peer's memory directly is forbidden in most containers, and Open MPI then warns on
  // every start.
  set("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
  // A host that falls silent (power, cable) is noticed after 15 s, before ranks are thought to
  // hang; Open MPI itself waits for 8 minutes.
  set("OMPI_MCA_oob_tcp_keepalive_time", "6");
  set("OMPI_MCA_oob_tcp_keepalive_intvl", "3");
  set("OMPI_MCA_oob_tcp_keepalive_probes", "3");
  if (::geteuid() == 0) {
    set("OMPI_ALLOW_RUN_AS_ROOT", "1");
    set("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  }
  return variables;
}

std::vector<std::string> MpirunCommand(const RankOptions& options, const Variables& variables,
                                       const std::string& token,
                                       const std::vector<std::string>& command) {
  std::vector<std::string> words = {"mpirun",
                                    "-n",
                                    std::to_string(options.ranks),
                                    "--oversubscribe",
                                    "--bind-to",
                                    "none",
                                    "--mca",
                                    "mpi_yield_when_idle",
                                    "1"};
  if (!options.hostfile.empty()) words.insert(words.end(), {"--hostfile", options.hostfile});
  for (const char* name : {"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MILLRACE_STDOUT_TTY",
                           "MILLRACE_STDERR_TTY", "COLUMNS", "NO_COLOR", "CI", "LD_LIBRARY_PATH"}) {
    const char* const ours = std::getenv(name);
    if ((ours != nullptr && *ours != '\0') || variables.contains(name))
      words.insert(words.end(), {"-x", name});
  }
  words.insert(words.end(), {OwnProgram(), std::string(kAsRank) + token});
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

std::string OwnProgram() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

}  // namespace millrace
