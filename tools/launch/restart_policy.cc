#include "tools/launch/restart_policy.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/base/error.h"

namespace millrace {
namespace {

bool IsFinal(int code) {
  for (const ErrorCode final :
       {ErrorCode::kConfig, ErrorCode::kData, ErrorCode::kCheckpoint, ErrorCode::kDoesNotFit,
        ErrorCode::kNonFinite, ErrorCode::kPreempted})
    if (code == ExitCode(final)) return true;
  return code == 0;
}

}  // namespace

Decision RestartPolicy::After(const AttemptEnd& end) {
  Decision decision;
  decision.is_final = IsFinal(end.verdict.exit_code);
  if (decision.is_final) return decision;

  if (end.step > furthest_ || end.checkpoint > checkpoint_) {
    failed_.clear();
    fruitless_ = 0;
  }
  furthest_ = std::max(furthest_, end.step);
  checkpoint_ = std::max(checkpoint_, end.checkpoint);
  bool again = false;
  if (end.trained) {
    fruitless_ = 0;
    again = !failed_.insert(end.step).second;
  } else {
    ++fruitless_;
  }

  if (again)
    decision.stop =
        fmt::format("it ended twice after step {} without progress in between", end.step);
  else if (fruitless_ >= kFruitlessStarts)
    decision.stop = fmt::format("{} attempts in a row ended before their first step", fruitless_);
  else if (restarts_ >= max_restarts_)
    decision.stop = fmt::format("it was restarted {} times (--max-restarts)", restarts_);
  if (!decision.stop.empty()) return decision;
  ++restarts_;
  decision.restart = true;
  decision.wait_s = end.trained ? 0 : 0.5 * fruitless_;
  return decision;
}

}  // namespace millrace
