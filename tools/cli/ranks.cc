// Where a verb runs: the transport of this process, and how failures end a job.
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <thread>

#include "comm/host_collectives.h"
#include "comm/local/local_world.h"
#include "comm/mpi/mpi_factory.h"
#include "comm/mpi/mpi_runtime.h"
#include "kernels/cpu/cpu_kernels.h"
#include "runtime/api/assemble.h"
#include "runtime/api/exchange.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/base/error.h"
#include "tools/cli/command.h"

namespace millrace {
namespace {

// A launcher that speaks PMI or PMIx, or OpenMPI's own, started this process.
bool Launched() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

// What is wrong with the world outside is mostly wrong for every rank: the same file is missing for all. Then
// rank 0 says so and ends the job, before the others do; when it has found nothing wrong, they speak after
// all.
bool IsLikelyEverywhere(ErrorCode code) {
  return code == ErrorCode::kConfig || code == ErrorCode::kData || code == ErrorCode::kCheckpoint ||
         code == ErrorCode::kDoesNotFit || code == ErrorCode::kIo;
}
constexpr std::chrono::seconds kLeaderSpeaksFirst(3);

BackendTraits TraitsOf(int world) { return {Backend::kCpu, ScratchBytes(world)}; }

LoadedConfig LoadAndPlan(const ConfigArguments& arguments, const PlanSelection& plans, int world) {
  LoadedConfig loaded = LoadRunConfig(arguments.files, arguments.sets, ConfigContext{.world = world});
  Assemble(loaded.config, world, TraitsOf(world),
           plans);  // what cannot be planned is as wrong as what cannot be parsed
  return loaded;
}

int Run(CommFactory& factory, const ConfigArguments& arguments, const PlanSelection& plans,
        const std::function<int(RankContext&)>& body) {
  LoadedConfig loaded;
  try {
    loaded = LoadRunConfig(arguments.files, arguments.sets, ConfigContext{.world = factory.world_size()});
    if (factory.world_size() > 1)
      Assemble(loaded.config, factory.world_size(), TraitsOf(factory.world_size()), plans);
  } catch (const Error& error) {
    // Every rank reads the same files and finds the same mistakes; one says so.
    if (factory.rank() == 0) std::cerr << "millrace: " << error.what() << std::endl;
    return ExitCode(error.code());
  }
  const std::unique_ptr<Device> device = MakeHostDevice();
  Environment environment;
  environment.device = device.get();
  environment.kernels = &CpuKernels();
  environment.comm_factory = &factory;
  environment.traits = TraitsOf(factory.world_size());
  RankContext context{factory, environment, std::move(loaded)};
  return body(context);
}

}  // namespace

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
    return Run(*factory, arguments, plans, body);
  }
  MpiRuntime mpi(nullptr, nullptr);
  try {
    const std::unique_ptr<CommFactory> factory = MakeMpiCommFactory(mpi);
    return Run(*factory, arguments, plans, body);
  } catch (const Error& error) {
    if (mpi.rank() != 0 && IsLikelyEverywhere(error.code())) std::this_thread::sleep_for(kLeaderSpeaksFirst);
    mpi.Abort(error.what(), ExitCode(error.code()));
  } catch (const std::exception& error) {
    mpi.Abort(error.what(), ExitCode(ErrorCode::kInternal));
  }
}

}  // namespace millrace
