#include "runtime/record/roll_back_log.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/data/file_system.h"
#include "runtime/data/input_file.h"
#include "runtime/data/jsonl_appender.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kLargest = int64_t{256} << 20;

std::string PathIn(const std::string& run_dir) { return run_dir + "/" + kRollBackLogName; }

int64_t CountIn(const Json& state) {
  const auto found = state.find("roll_backs");
  return found == state.end() ? 0 : static_cast<int64_t>(found->size());
}

// The beginning of any bytes, quoted, without those that a terminal obeys or a C string ends at.
std::string Shown(const std::string& text) {
  return DumpJson(Json(text.substr(0, 80)), {.ascii = true, .replace = true});
}

}  // namespace

void LogRollBack(const std::string& run_dir, const std::vector<RollBack>& roll_backs,
                 const std::string& state) {
  MR_CHECK(!roll_backs.empty(), "no roll-back was made");
  const RollBack& last = roll_backs.back();
  JsonlAppender lines(PathIn(run_dir));
  lines.Append(DumpJson(Json{{"from", last.from},
                             {"to", last.to},
                             {"why", last.why},
                             {"roll_backs", roll_backs.size()},
                             {"state", ParseOrderedJson(state)}}));
  lines.Sync();
}

std::string StateAfterRollBacks(const std::string& run_dir, int64_t step,
                                const std::string& state) {
  const std::string path = PathIn(run_dir);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return state;
  std::string newest = state, kept;
  try {
    std::vector<std::pair<int64_t, std::string>> lines;  // roll-backs made with it, text
    std::istringstream in(ReadWholeFile(path, kLargest, ErrorCode::kCheckpoint));
    int64_t made = CountIn(ParseOrderedJson(state));
    for (std::string text; std::getline(in, text);) {
      // Without its newline, however whole it looks: the machine failed while it was written, and
      // no step was trained after it. The next line that is logged takes its place.
      if (in.eof()) break;
      const Json line = TryParseOrderedJson(text);
      MR_REQUIRE(ErrorCode::kCheckpoint, line.is_object(),
                 "{} is damaged: line {} is {}, not an object; without the file its roll-backs are "
                 "forgotten, and their data are read again",
                 path, lines.size() + 1, Shown(text));
      const Json& after = line.at("state");
      const Json& to = line.at("to");
      MR_REQUIRE(ErrorCode::kCheckpoint, to.is_number_integer(),
                 "{} is damaged: line {} goes back to {}, not to a step", path, lines.size() + 1,
                 DumpJson(to));
      lines.emplace_back(CountIn(after), text);
      if (to.get<int64_t>() != step || CountIn(after) <= made) continue;
      newest = DumpJson(after);
      made = CountIn(after);
    }
    size_t dropped = 0;
    for (const auto& [count, text] : lines) {
      if (count <= made)
        kept += text + "\n";
      else
        ++dropped;
    }
    if (dropped > 0) WriteFileAtomically(FileSystem::Posix(), path, kept);
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kCheckpoint, fmt::format("{} is damaged: {}", path, error.what()));
  }
  return newest;
}

}  // namespace millrace
