// Where a verb runs: the transport of this process, and how failures end a job.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "comm/local/local_world.h"
#include "comm/mpi/mpi_factory.h"
#include "comm/mpi/mpi_runtime.h"
#include "runtime/api/assemble.h"
#include "runtime/api/exchange.h"
#include "runtime/base/error.h"
#include "tools/cli/backend.h"
#include "tools/cli/command.h"
#include "tools/cli/host_facts.h"
#include "tools/cli/one_configuration.h"
#include "tools/cli/parent_watch.h"

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

using EndJob =
    std::function<void(const std::string& reason)>;  // with the exit code of a hang; any thread

// MPI is asked to end all ranks. It may hang as the job does; then this process leaves by itself,
// and its launcher ends the others.
constexpr std::chrono::seconds kMpiEnds(10);

int Run(CommFactory& factory, const ConfigArguments& arguments, const PlanSelection& plans,
        const EndJob& end_job, const std::function<int(RankContext&)>& body) {
  const int world = factory.world_size();
  LoadedConfig loaded;
  Backend backend = Backend::kCpu;
  Mesh mesh;
  OwnConfiguration own;
  ErrorCode code = ErrorCode::kConfig;  // of the own mistakes
  try {
    loaded = LoadHere(arguments, world);
    backend = ChooseBackend(loaded.config);
    if (world > 1) {
      const MeshShape shape =
          Assemble(loaded.config, world, TraitsOf(backend, world), plans).layout.mesh;
      mesh = {shape.replicate, shape.shard};
    }
    own = {"", ConfigToJson(loaded.config), backend};
  } catch (const Error& error) {
    own.mistakes = error.what();
    code = error.code();
  }
  std::vector<int> everyone(static_cast<size_t>(world));
  std::iota(everyone.begin(), everyone.end(), 0);
  try {
    RequireOneConfiguration(*factory.Make(everyone, "configuration"), own);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConfig) throw;
    if (factory.rank() == 0) std::cerr << "millrace: " << error.what() << std::endl;
    return ExitCode(code);
  }
  if (factory.rank() == 0) SayNotes(loaded);
  RankDevice device = MakeRankDevice(backend, factory, loaded.config, mesh);
  if (factory.rank() == 0 && !device.notice.empty())
    std::cerr << "millrace: " << device.notice << std::endl;
  device.environment.on_stall = end_job;
  device.environment.on_warning = [](const std::string& text) {
    std::cerr << "millrace: warning: " << text << std::endl;
  };
  device.environment.describe = [facts = device.facts] { return DescribeRank(facts); };
  RankContext context{*device.environment.comm_factory, device.environment, device.machine,
                      std::move(loaded)};
  return body(context);
}

}  // namespace

LoadedConfig LoadHere(const ConfigArguments& arguments, std::optional<int64_t> world) {
  const bool has_cuda = CudaBuiltIn();
  return LoadRunConfig(
      arguments.files, arguments.sets,
      {.world = world, .has_cuda = has_cuda, .auto_is_cpu = !has_cuda || VisibleGpus() == 0});
}

void SayNotes(const LoadedConfig& loaded) {
  for (const std::string& note : loaded.notes) std::cerr << "millrace: note: " << note << std::endl;
}

std::unique_ptr<RunLock> LockRun(const RankContext& context) {
  std::unique_ptr<RunLock> lock;
  if (!context.leader()) return lock;
  lock = std::make_unique<RunLock>(context.config.config.run.dir);
  if (!lock->warning().empty()) std::cerr << "millrace: warning: " << lock->warning() << std::endl;
  return lock;
}

int RunOnRanks(const ConfigArguments& arguments, const PlanSelection& plans,
               const std::function<int(RankContext&)>& body) {
  if (const char* preflight = std::getenv("MILLRACE_PREFLIGHT");
      preflight != nullptr && std::string(preflight) == "1") {
    const char* world = std::getenv("MILLRACE_WORLD");
    LoadAndPlan(arguments, plans, world == nullptr ? 1 : std::atoi(world));
    return 0;
  }
  if (!Launched()) {
    LocalWorld world(1);
    const std::unique_ptr<CommFactory> factory = world.Factory(0);
    const EndJob end_job = [](const std::string& reason) {
      std::cerr << "millrace: " << reason << std::endl;
      _exit(ExitCode(ErrorCode::kTimeout));
    };
    return Run(*factory, arguments, plans, end_job, body);
  }
  DieWithParent();
  MpiRuntime mpi(nullptr, nullptr);
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
    return Run(*factory, arguments, plans, end_job, body);
  } catch (const Error& error) {
    if (mpi.rank() != 0 && IsLikelyEverywhere(error.code()))
      std::this_thread::sleep_for(kLeaderSpeaksFirst);
    mpi.Abort(error.what(), ExitCode(error.code()));
  } catch (const std::exception& error) {
    mpi.Abort(error.what(), ExitCode(ErrorCode::kInternal));
  }
}

}  // namespace millrace
