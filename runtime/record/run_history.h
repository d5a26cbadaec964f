// What a run was made with: run.dir/config.json. The first call's configuration whole, every key
// with the value in force and where it comes from; for each later call that was given something
// else, what changed. Written by rank 0 at the start of each call, before its first step, so that a
// killed run has it too.
//
//   {"step": 0, "world": 2, "backend": "cpu",
//    "keys": {"model.family": {"value": "llama", "origin": "quickstart.json:3"}, ...},
//    "plan_stages": {"model_spec": "<hash>", ...},
//    "environment": [{"name": "host", "value": "elm: ranks 0-1"}, ...],
//    "resumed": [{"step": 200, "world": 2, "backend": "cpu", "keys": {what changed}, "plan_stages":
//                 {...}, "environment": [all of it]}]}
//
// Invariant  Calls ascend by step, and each differs from the one before in more than origins, start
//            and command: resuming with the same configuration on the same machine leaves the file
//            as it is. Every step of metrics.jsonl was trained by the last call whose step is below
//            it: a call that goes back behind an earlier one replaces it.
// Environment  What a call ran on, for people; empty in files of before it was recorded.
// Text       A path in an origin that is not UTF-8 has replacement characters.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/data/file_system.h"
#include "runtime/record/plan_stage.h"

namespace millrace {

struct RecordedValue {
  std::string value;   // JSON text
  std::string origin;  // "default", "quickstart.json:12", "--set"
  bool operator==(const RecordedValue&) const = default;
};

// What was in force from a step on.
struct RecordedCall {
  int64_t step = 0;  // steps done when it began
  int64_t world = 1;
  std::string backend;                                           // "cpu" or "cuda", never "auto"
  std::map<std::string, RecordedValue> keys;                     // all, by path; no null section's
  std::map<std::string, std::string> plan_stages;                // hashes by name
  std::vector<std::pair<std::string, std::string>> environment;  // name, value; empty: not recorded
};

using RunHistory = std::vector<RecordedCall>;

struct CallStart {
  int64_t step = 0;
  int64_t world = 1;
  std::string backend;  // "cpu" or "cuda"
};

// `origin` as LoadedConfig has it; a key that it lacks is a default. `stages`
// are PlanStages of the run.
RecordedCall DescribeCall(const Config& config, const std::map<std::string, std::string>& origin,
                          const std::vector<PlanStage>& stages, const CallStart& start);

// The history once `now` has begun.
RunHistory WithCall(RunHistory history, const RecordedCall& now);

std::string RunHistoryJson(const RunHistory& history);
// Of a history in memory, calls times keys and entries: each call holds all keys, though its file
// says only what changed.
inline constexpr size_t kMostHistoryValues = size_t{1} << 20;

// Error(kData) naming `path` and what is wrong, more than `most_values` included.
RunHistory ParseRunHistory(std::string_view text, const std::string& path,
                           size_t most_values = kMostHistoryValues);

// run_dir's; none where there is no such file. Errors: kData as above, kIo.
std::optional<RunHistory> ReadRunHistory(const std::string& run_dir);
bool HasRunHistory(const std::string& run_dir);  // and it can be read

// Brings run_dir/config.json up to date, atomically. A file of that name that is no history (a
// configuration that someone keeps there, or a damaged one) is left as it is: what is returned says
// so, else it is empty.
std::string RecordCall(const std::string& run_dir, const RecordedCall& now,
                       FileSystem& files = FileSystem::Posix());

// The configuration that the call's values stand for. Error(kData) naming a key that this version
// lacks, or a value that it does not take.
Config ConfigOf(const RecordedCall& call);

}  // namespace millrace
