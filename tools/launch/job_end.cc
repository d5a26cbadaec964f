#include "tools/launch/job_end.h"

#include <fmt/core.h>

#include <csignal>
#include <cstring>

#include "runtime/base/error.h"
#include "tools/launch/hang_watch.h"

namespace millrace {
namespace {

constexpr int kSignalBase = 128, kSignals = 64;
constexpr int kCodeUnknown = 76;
constexpr const char* kGoesOn =
    "the same command goes on from the last checkpoint, if there is one";

bool IsCrash(int number) {
  for (const int crash : {SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS})
    if (number == crash) return true;
  return false;
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

std::string ReasonOfCode(const std::string& leader, int code) {
  const std::optional<ErrorCode> error = ErrorOf(code);
  return fmt::format("{} ended with exit code {}{}", leader, code,
                     error ? fmt::format(" ({})", Name(*error)) : "");
}

Verdict StoppedAtOnce() {
  return {kStoppedAtOnce,
          "it was stopped at once",
          "stopped at once, on the second request; the last checkpoint is what there is",
          {}};
}

Verdict Preempted(const std::string& sentence) {
  return {ExitCode(ErrorCode::kPreempted), "it was stopped", sentence, {}};
}

// `reason_of`, `who`: whom the signal ended, for the two sentences.
Verdict EndedBySignal(int number, const std::string& reason_of, const std::string& who,
                      const JobKind& kind, int stop_requests) {
  if (stop_requests > 1) return StoppedAtOnce();
  if (stop_requests == 1 && number == SIGUSR1)
    return Preempted(kind.has_steps ? "stopped before the first step; there was nothing to save"
                                    : "stopped on request");
  const std::string name = SignalName(number);
  if (IsCrash(number))
    return {
        ExitCode(ErrorCode::kInternal),
        fmt::format("{} crashed with {}", reason_of, name),
        fmt::format("{} crashed with {}: a bug in Millrace. The job has been stopped", who, name),
        {}};
  return {ExitCode(ErrorCode::kPeerLost),
          fmt::format("{} was killed by {}", reason_of, name),
          fmt::format("{} was killed by {}. The job has been stopped; {}", who, name, kGoesOn),
          {}};
}

Verdict OfOneProcess(const JobEnd& end, const JobKind& kind, int stop_requests) {
  if (!IsSignalCode(end.code)) return {end.code, ReasonOfCode("the run", end.code), "", {}};
  Verdict verdict = EndedBySignal(end.code - kSignalBase, "the run", "rank 0 on " + kind.host, kind,
                                  stop_requests);
  verdict.lost_rank = 0;
  return verdict;
}

Verdict OfLostRank(const JobEnd& end, const JobKind& kind, int stop_requests) {
  const auto& [rank, host, signal] = *end.said.lost_rank;
  const auto process = end.said.ranks.find(rank);
  const std::string pid = process == end.said.ranks.end() ? "?" : std::to_string(process->second);
  Verdict verdict =
      EndedBySignal(signal, "a rank", fmt::format("rank {} (pid {}) on {}", rank, pid, host), kind,
                    stop_requests);
  verdict.lost_rank = rank;
  return verdict;
}

// What is left: mpirun has ended with a code other than 0, or was killed, and no rank has said why.
Verdict OfOwnCode(const JobEnd& end, const JobKind& kind, int stop_requests) {
  const bool known = !end.leader_lost && (IsSignalCode(end.code) || ErrorOf(end.code));
  if (!end.said.lost_host.empty() && !end.said.code && !known) {
    if (stop_requests > 1) return StoppedAtOnce();
    return {ExitCode(ErrorCode::kPeerLost),
            end.said.lost_host + " was lost",
            fmt::format("{} was lost. The job has been stopped; {}", end.said.lost_host, kGoesOn),
            {}};
  }
  if (end.stuck != Stuck::kNo) {
    if (stop_requests > 1) return StoppedAtOnce();
    return {kCodeUnknown,
            fmt::format("{} did not end although no rank was left, and was killed", kind.leader),
            "what code the job ended with is not known; the same command goes on, or says that "
            "the run is complete",
            {}};
  }
  if (IsSignalCode(end.code)) {
    const std::string who = end.leader_lost ? kind.leader : "a rank";
    return EndedBySignal(end.code - kSignalBase, who, who, kind, stop_requests);
  }
  if (stop_requests > 1 && !known) return StoppedAtOnce();  // mpirun's own code says nothing
  const std::string reason = ReasonOfCode(kind.leader, end.code);
  if (known) return {end.code, reason, "", {}};
  // Its own troubles: no slots, no such host, a host that is gone.
  return {ExitCode(ErrorCode::kPeerLost),
          reason,
          fmt::format("{}. The job has been stopped; {}", reason, kGoesOn),
          {}};
}

Verdict OfMpirun(const JobEnd& end, const JobKind& kind, int stop_requests) {
  if (end.said.lost_rank) return OfLostRank(end, kind, stop_requests);
  if (end.code == 0) return {};
  if (kind.announces && end.said.ranks.empty()) {
    if (stop_requests > 0) return Preempted("stopped before the ranks started; nothing to save");
    return {ExitCode(ErrorCode::kPeerLost),
            ReasonOfCode(kind.leader, end.code),
            fmt::format("mpirun could not start the ranks (its exit code {}; its messages are "
                        "above)",
                        end.code),
            {}};
  }
  // Open MPI's mpirun 4.1.4 at times crashes or hangs on its way out, after the job has ended: the
  // job's code is what counts.
  const bool leader_failed = end.stuck != Stuck::kNo || IsSignalCode(end.code);
  std::optional<int> code = end.said.code;
  const std::optional<int>& announced = end.said.announced_code;
  // An mpirun that waits for a host has not come to saying it.
  if (!code && end.stuck != Stuck::kNo && end.said.lost_host.empty() && announced &&
      ErrorOf(*announced))
    code = announced;
  if (leader_failed && code) return {*code, ReasonOfCode(kind.leader, *code), "", {}};
  return OfOwnCode(end, kind, stop_requests);
}

}  // namespace

Verdict Judge(const JobEnd& end, const JobKind& kind, int stop_requests) {
  if (kind.leader.empty() && end.code == 0) return {};
  if (kind.leader.empty()) return OfOneProcess(end, kind, stop_requests);
  Verdict verdict = OfMpirun(end, kind, stop_requests);
  // A rank announces its end behind its words, in the same stream. Who stops on request has none.
  const std::optional<ErrorCode> error = ErrorOf(verdict.exit_code);
  verdict.unsaid = kind.announces && verdict.sentence.empty() && error &&
                   *error != ErrorCode::kPreempted && !end.said.announced_code;
  return verdict;
}

std::string StuckWords(Stuck stuck) {
  switch (stuck) {
    case Stuck::kNo:
      break;
    case Stuck::kNoRankLeft:
      return fmt::format(
          "no rank is left, but Open MPI's mpirun did not end for {} s (4.1.4 does "
          "so at times after a bad end): killed it",
          kHang.count());
    case Stuck::kOtherHost:
      return fmt::format(
          "no rank is left on this host, but mpirun waited {} s for another one, "
          "which does not answer: killed it",
          kOtherHost.count());
  }
  return "";
}

bool IsSignalCode(int code) { return code > kSignalBase && code <= kSignalBase + kSignals; }

std::string SignalName(int number) {
  const char* const name = ::sigabbrev_np(number);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", number);
}

}  // namespace millrace
