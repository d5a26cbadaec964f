#include "tools/cli/restart_policy.h"

#include <fmt/core.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <optional>

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr int kSignalBase = 128, kSignals = 64;

bool IsSignal(int code) { return code > kSignalBase && code <= kSignalBase + kSignals; }

std::string SignalName(int number) {
  const char* const name = ::sigabbrev_np(number);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", number);
}

bool IsCrash(int number) {
  for (const int crash : {SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS})
    if (number == crash) return true;
  return false;
}

bool IsFinal(int code) {
  for (const ErrorCode final :
       {ErrorCode::kConfig, ErrorCode::kData, ErrorCode::kCheckpoint, ErrorCode::kDoesNotFit,
        ErrorCode::kNonFinite, ErrorCode::kPreempted})
    if (code == ExitCode(final)) return true;
  return code == 0;
}

// The error of the program that `code` stands for; none for success and for mpirun's own codes.
std::optional<ErrorCode> ErrorOf(int code) {
  for (const ErrorCode known :
       {ErrorCode::kConfig, ErrorCode::kData, ErrorCode::kCheckpoint, ErrorCode::kDoesNotFit,
        ErrorCode::kInternal, ErrorCode::kTimeout, ErrorCode::kPeerLost, ErrorCode::kNonFinite,
        ErrorCode::kIo, ErrorCode::kPreempted, ErrorCode::kDevice})
    if (code == ExitCode(known)) return known;
  return std::nullopt;
}

std::string WordsFor(int code) {
  const std::optional<ErrorCode> error = ErrorOf(code);
  return error ? fmt::format("exit code {} ({})", code, Name(*error))
               : fmt::format("exit code {}", code);
}

// What the supervisor itself exits with.
int FinalCode(int code) {
  if (IsSignal(code))
    return ExitCode(IsCrash(code - kSignalBase) ? ErrorCode::kInternal : ErrorCode::kPeerLost);
  // Its own troubles have codes of mpirun's: no slots, no such host, a host that is gone.
  return code == 0 || ErrorOf(code) ? code : ExitCode(ErrorCode::kPeerLost);
}

}  // namespace

std::string RestartPolicy::ReasonOf(const AttemptEnd& end) const {
  if (end.hung)
    return fmt::format("{} did not end although no rank was left, and was killed", leader_);
  if (!end.lost_host.empty() && !IsSignal(end.code) && !ErrorOf(end.code))
    return fmt::format("{} was lost", end.lost_host);
  if (!IsSignal(end.code)) return fmt::format("{} ended with {}", leader_, WordsFor(end.code));
  const int number = end.code - kSignalBase;
  return fmt::format("{} {} {}", end.leader_lost ? leader_ : "a rank",
                     IsCrash(number) ? "crashed with" : "was killed by", SignalName(number));
}

Decision RestartPolicy::After(const AttemptEnd& end) {
  Decision decision;
  decision.exit_code = FinalCode(end.code);
  if (end.code == 0) return decision;
  decision.reason = ReasonOf(end);
  if (IsFinal(end.code) && !end.hung) return decision;

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
