// Where a verb runs: the transport of this process, and how failures end a job.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "comm/local/local_world.h"
#include "comm/mpi/mpi_factory.h"
#include "comm/mpi/mpi_runtime.h"
#include "runtime/api/backend.h"
#include "runtime/api/host_facts.h"
#include "runtime/base/error.h"
#include "runtime/run/assemble.h"
#include "runtime/run/huggingface/exchange.h"
#include "runtime/run/one_configuration.h"
#include "tools/cli/command.h"
#include "tools/cli/launch/parent_watch.h"
#include "tools/cli/launch/this_program.h"
#include "tools/launch/mpirun_words.h"

namespace millrace {
namespace {

// A launcher that speaks PMI or PMIx, or OpenMPI's own, started this process.
bool Launched() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

// What is wrong with the world outside is mostly wrong for every rank: the same file is missing for
// all. Then rank 0 says so and ends the job, before the others do; when it has found nothing wrong,
// they speak after all.
bool IsLikelyEverywhere(ErrorCode code) {
  return code == ErrorCode::kConfig || code == ErrorCode::kData || code == ErrorCode::kCheckpoint ||
         code == ErrorCode::kDoesNotFit || code == ErrorCode::kIo;
}
constexpr std::chrono::seconds kLeaderSpeaksFirst(3);

LoadedConfig LoadAndPlan(const ConfigArguments& arguments, const PlanSelection& plans, int world) {
  LoadedConfig loaded = LoadHere(arguments, world);
  Assemble(loaded.config, world, TraitsOf(ChooseBackend(loaded.config), world),
           plans);  // what cannot be planned is as wrong as what cannot be parsed
  return loaded;
}

void SayNotes(const LoadedConfig& loaded, Log& log) {
  for (const std::string& note : loaded.notes) log.Info(LogScope::kAllRanks, "note: " + note);
}

using EndJob =
    std::function<void(const std::string& reason)>;  // with the exit code of a hang; any thread

// MPI is asked to end all ranks. It may hang as the job does; then this process leaves by itself,
// and its launcher ends the others.
constexpr std::chrono::seconds kMpiEnds(10);

int Run(CommFactory& factory, ProgramLog& log, const ConfigArguments& arguments,
        const PlanSelection& plans, const EndJob& end_job,
        const std::function<int(RankContext&)>& body) {
  const int world = factory.world_size();
  log.BeRank(factory.rank(), world);
  LoadedConfig loaded;
  Backend backend = Backend::kCpu;
  Mesh mesh;
  OwnConfiguration own;
  ErrorCode code = ErrorCode::kConfig;  // of the own mistakes
  try {
    loaded = LoadHere(arguments, world);
    backend = ChooseBackend(loaded.config);
    if (world > 1)
      mesh = Assemble(loaded.config, world, TraitsOf(backend, world), plans).layout.mesh;
    own = {"", ConfigToJson(loaded.config), backend};
    log.ShowFrom(loaded.config.run.log_level);
  } catch (const Error& error) {
    own.mistakes = error.what();
    code = error.code();
  }
  std::vector<int> everyone(static_cast<size_t>(world));
  std::iota(everyone.begin(), everyone.end(), 0);
  const std::unique_ptr<Communicator> meeting = factory.Make(everyone, "configuration");
  try {
    RequireOneConfiguration(*meeting, own);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConfig) throw;
    log.Write(LogLevel::kError, LogScope::kAllRanks, error.what());
    return ExitCode(code);
  }
  int result = 0;
  {
    SayNotes(loaded, log);
    RankDevice device = MakeRankDevice(backend, factory, log, loaded.config, mesh);
    if (!device.notice.empty()) log.Info(LogScope::kAllRanks, device.notice);
    device.environment.on_stall = end_job;
    device.environment.log = &log;
    RunEnvironment facts = device.facts;
    if (MpiStarted()) facts.emplace_back("MPI", MpiLibrary());
    device.environment.describe = [facts] { return DescribeRank(CommandLine(), facts); };
    RankContext context{*device.environment.comm_factory, device.environment, device.machine,
                        std::move(loaded), log};
    result = body(context);
  }
  log.Meet(meeting->HostAllGather(log.TakeWarnings()));  // also what tear-down had to say
  return result;
}

// The error that ends a process that has no peers; whoever catches it says it.
template <class F>
int WithLastWords(ProgramLog& log, const F& run) {
  try {
    return run();
  } catch (const Error& error) {
    log.LastWords(error.what(), ExitCode(error.code()));
    throw;
  } catch (const std::exception& error) {
    log.LastWords(error.what(), ExitCode(ErrorCode::kInternal));
    throw;
  }
}

}  // namespace

LoadedConfig LoadHere(const ConfigArguments& arguments, std::optional<int64_t> world) {
  const bool has_cuda = CudaBuiltIn(), has_gpus = has_cuda && VisibleGpus() > 0;
  return LoadRunConfig(
      arguments.files, arguments.sets,
      {.world = world, .has_cuda = has_cuda, .auto_is_cpu = !has_gpus, .auto_is_cuda = has_gpus});
}

void SayNotes(const LoadedConfig& loaded) {
  ProgramLog log;
  log.ShowFrom(loaded.config.run.log_level);
  SayNotes(loaded, log);
}

std::unique_ptr<RunLock> LockRun(const RankContext& context) {
  std::unique_ptr<RunLock> lock;
  if (!context.leader()) return lock;
  lock = std::make_unique<RunLock>(context.config.config.run.dir);
  if (!lock->warning().empty()) context.log.Warning(LogScope::kAllRanks, lock->warning());
  return lock;
}

int RunOnRanks(const ConfigArguments& arguments, const PlanSelection& plans,
               const std::function<int(RankContext&)>& body) {
  if (const char* preflight = std::getenv("MILLRACE_PREFLIGHT");
      preflight != nullptr && std::string(preflight) == "1") {
    const char* world = std::getenv("MILLRACE_WORLD");
    NoteLogFolder(
        LoadAndPlan(arguments, plans, world == nullptr ? 1 : std::atoi(world)).config.run.dir);
    return 0;
  }
  ProgramLog log;
  if (!Launched()) {
    LocalWorld world(1);
    const std::unique_ptr<CommFactory> factory = world.Factory(0);
    const EndJob end_job = [&log](const std::string& reason) {
      const int code = ExitCode(ErrorCode::kTimeout);
      log.LastWords(reason, code);
      log.Write(LogLevel::kError, LogScope::kAllRanks, reason);
      _exit(code);
    };
    return WithLastWords(log, [&] { return Run(*factory, log, arguments, plans, end_job, body); });
  }
  DieWithParent();
  MpiRuntime mpi(nullptr, nullptr);
  mpi.BeforeAbort(
      [&log](const std::string& reason, int code) noexcept { log.LastWords(reason, code); });
  mpi.BeforeEnd(AnnounceEnd);
  try {
    const std::unique_ptr<CommFactory> factory = MakeMpiCommFactory(mpi);
    const EndJob end_job = [&mpi](const std::string& reason) {
      const int code = ExitCode(ErrorCode::kTimeout);
      std::thread([code] {
        std::this_thread::sleep_for(kMpiEnds);
        _exit(code);
      }).detach();
      mpi.Abort(reason, code);
    };
    return Run(*factory, log, arguments, plans, end_job, body);
  } catch (const Error& error) {
    if (mpi.rank() != 0 && IsLikelyEverywhere(error.code()))
      std::this_thread::sleep_for(kLeaderSpeaksFirst);
    mpi.Abort(error.what(), ExitCode(error.code()));
  } catch (const std::exception& error) {
    mpi.Abort(error.what(), ExitCode(ErrorCode::kInternal));
  }
}

}  // namespace millrace
