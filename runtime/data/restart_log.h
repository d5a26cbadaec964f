// run.dir/restarts.jsonl: what ended a supervised run (tools/cli/launch/launch.cc) before it was
// done, and when it went on. Two kinds of lines, in the order in which things happened:
//
//   {"event": "failed", "time": "2026-11-20T10:15:00Z", "reason": "a rank was killed by SIGKILL",
//    "exit_code": 137, "step": 20, "checkpoint": 18, "restarts": true}
//   {"event": "resumed", "time": "2026-11-20T10:15:02Z", "step": 19, "seconds": 1.74}
//
// step       failed: the last step that was done; resumed: the first that is done after it
// exit_code  as shells write it, 128 + N for signal N; null where nobody saw it
//            (the supervisor was killed)
// seconds    from the failure to the end of that step
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

struct Failure {
  std::string time;  // UTC
  std::string reason;
  std::optional<int> exit_code;
  int64_t step = 0;
  int64_t checkpoint = 0;  // the newest usable one; 0: none
  bool restarts = true;    // false: the supervisor gave up
};

struct RecordedFailure {
  Failure failure;
  std::optional<int64_t> resumed_step;  // none: not yet, or the next failure came first
  std::optional<double> seconds;
};

std::string TimeNowUtc();

// Appends to the file in run_dir, which exists. Opened for each line, so that a file that was put
// aside in between is left alone. Errors: kIo.
void LogFailure(const std::string& run_dir, const Failure& failure);
void LogResumed(const std::string& run_dir, int64_t step, double seconds);

// Lines that are none of the above (a torn last one) are passed over.
std::vector<RecordedFailure> ParseRestarts(std::string_view text);
// None where there is no such file. Error(kData): it cannot be read.
std::vector<RecordedFailure> ReadRestarts(const std::string& run_dir);

}  // namespace millrace
