// What verbs with a configuration share: how it is loaded, and where a verb runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "comm/comm_factory.h"
#include "runtime/config/load.h"
#include "runtime/data/run_lock.h"
#include "runtime/plan/cost/machine.h"
#include "runtime/run/session.h"
#include "tools/cli/terminal/program_log.h"
#include "tools/cli/verbs.h"

namespace millrace {

// One rank of a verb that needs ranks: its factory, the environment of a session, and
// whose figures MFU is for.
struct RankContext {
  CommFactory& factory;
  Environment environment;
  Machine machine;
  LoadedConfig config;
  ProgramLog& log;
  bool leader() const { return factory.rank() == 0; }
};

// LoadRunConfig, for this machine and `world` ranks (empty: not known).
LoadedConfig LoadHere(const ConfigArguments& arguments, std::optional<int64_t> world);

// The notes of a configuration, a line each on standard error.
void SayNotes(const LoadedConfig& loaded);

// Runs `body` on this process's rank: under MPI when a launcher started it, alone otherwise. Loads
// and checks the configuration first: a wrong one is printed once, by rank 0, and is the exit code
// 2 of every rank. An exception of the body ends the whole job with its exit code; what every rank
// finds alike (data, checkpoint, ...) is said by rank 0 alone. In preflight (MILLRACE_PREFLIGHT=1,
// MILLRACE_WORLD=N; launch/launch_once.h) only the checking is done.
int RunOnRanks(const ConfigArguments& arguments, const PlanSelection& plans,
               const std::function<int(RankContext&)>& body);

// On rank 0 the lock of run.dir, for verbs that write there; a warning of it is said.
// Error(kConfig): another run has it. The other ranks go on at once, and are ended
// with rank 0 if it is refused.
std::unique_ptr<RunLock> LockRun(const RankContext& context);

}  // namespace millrace
