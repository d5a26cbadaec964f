// The program millrace: runs the verb that the command line asks for, and says what goes wrong.
#include <iostream>
#include <new>
#include <optional>

#include "runtime/base/error.h"
#include "tools/cli/launch/launch_once.h"
#include "tools/cli/terminal/standard_streams.h"
#include "tools/cli/words/command_line.h"
#include "tools/launch/mpirun_words.h"
#include "tools/launch/rank_command.h"
#include "tools/launch/stop_requests.h"

namespace millrace {
namespace {

// What stands before the verb, as options of `launch`. One rank is its default, and may come from
// tools/millrace beside an --mpirun.
std::vector<std::string> LaunchWords(const RankOptions& options, std::vector<std::string> words) {
  if (!options.hostfile.empty()) words.insert(words.begin() + 1, {"--hostfile", options.hostfile});
  if (options.ranks > 1)
    words.insert(words.begin() + 1, {"--ranks", std::to_string(options.ranks)});
  return words;
}

// Of the verbs that are one process: a -n that did nothing would pass for a plan of so many ranks.
void RequireAlone(const RankOptions& options, const std::string& verb) {
  const bool asks_for_help = verb.empty() || verb.starts_with("-");
  MR_REQUIRE(ErrorCode::kConfig, options.alone() || asks_for_help,
             "{} runs on 1 rank of this host; allowed is no -n but -n 1, and no --hostfile{}", verb,
             verb == "plan" || verb == "config" ? ". --world N is for N ranks" : "");
}

int Main(const char* program, std::vector<std::string> words) {
  std::string verb;
  try {
    const bool is_rank = AnnounceRank(words);
    std::optional<RankOptions> ranks;
    if (!is_rank) ranks = TakeRankOptions(words);
    if (!words.empty()) verb = words.front();
    PrepareStandardStreams(verb);
    if (ranks && RunsAsRanks(verb)) return LaunchOnce(*ranks, words);
    if (verb != "launch")
      UnblockStopSignals();
    else if (ranks)
      words = LaunchWords(*ranks, words);
    const Command command = ParseCommandLine(program, words);
    if (ranks && verb != "launch") RequireAlone(*ranks, verb);
    return FinishStandardOutput(verb, command());
  } catch (const Error& error) {
    std::cerr << "millrace: " << error.what() << std::endl;
    return ExitCode(error.code());
  } catch (const std::bad_alloc&) {
    std::cerr << "millrace: this process is given no more host memory; what it was asked for is "
                 "too large"
              << std::endl;
    return ExitCode(ErrorCode::kOutOfMemory);
  } catch (const std::exception& error) {
    std::cerr << "millrace: " << error.what() << std::endl;
    return ExitCode(ErrorCode::kInternal);
  }
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  const int code = millrace::Main(argv[0], std::vector<std::string>(argv + 1, argv + argc));
  if (code != 0) millrace::AnnounceEnd(code);
  return code;
}
