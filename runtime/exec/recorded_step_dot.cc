#include <fmt/core.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/exec/recorded_step.h"

namespace millrace {
namespace {

constexpr std::array<const char*, kStreams> kColours = {"#7fa3cf", "#9fc79f", "#d9a59a", "#c9b8dc"};

}  // namespace

std::string RecordedStep::DotOf(const Section& section) const {
  std::string text = "digraph step {\n  node [shape=box, style=filled];\n";
  std::map<int64_t, size_t> recorder;  // event -> the op that records it
  std::array<int64_t, kStreams> last;  // op issued last on each stream, -1: none
  last.fill(-1);
  for (size_t i = 0; i < section.issues.size(); ++i) {
    const Issue& issue = section.issues[i];
    const auto on = static_cast<size_t>(issue.on);
    const Entry& entry = schedule_[static_cast<size_t>(issue.entry)];
    text += fmt::format("  op_{} [label=\"{}\\n{}, microbatch {}\\n{}\", fillcolor=\"{}\"];\n", i,
                        OpOf(issue).label, plan_.body(entry).name, entry.microbatch,
                        Name(issue.stream), kColours[static_cast<size_t>(issue.stream)]);
    if (last[on] >= 0) text += fmt::format("  op_{} -> op_{};\n", last[on], i);
    for (const size_t event : issue.waits)
      text += fmt::format("  op_{} -> op_{} [style=dashed];\n",
                          recorder.at(static_cast<int64_t>(event)), i);
    if (issue.record >= 0) recorder[issue.record] = i;
    last[on] = static_cast<int64_t>(i);
  }
  return text + "}\n";
}

std::vector<std::string> RecordedStep::DotPaths(const std::string& path) const {
  if (sections_.size() == 1) return {path};
  const std::filesystem::path whole(path);
  std::vector<std::string> paths;
  for (size_t i = 0; i < sections_.size(); ++i)
    paths.push_back((whole.parent_path() /
                     fmt::format("{}.{}{}", whole.stem().string(), i, whole.extension().string()))
                        .string());
  return paths;
}

void RecordedStep::WriteDot(const std::string& path) const {
  const std::vector<std::string> paths = DotPaths(path);
  for (size_t i = 0; i < sections_.size(); ++i) {
    if (sections_[i].graph) {
      sections_[i].graph->WriteDot(paths[i]);
      continue;
    }
    std::ofstream file(paths[i]);
    file << DotOf(sections_[i]) << std::flush;
    MR_REQUIRE(ErrorCode::kIo, file.good(), "{}: the recorded step was not written", paths[i]);
  }
}

}  // namespace millrace
