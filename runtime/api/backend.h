// Which device a rank runs on. cuda_backend.cc implements the half that needs CUDA; a build without
// it links no_cuda_backend.cc instead.
#pragma once

#include <memory>
#include <string>

#include "comm/comm_factory.h"
#include "kernels/ops/kernel_table.h"
#include "runtime/base/device.h"
#include "runtime/base/log.h"
#include "runtime/base/mesh.h"
#include "runtime/base/profiler_ranges.h"
#include "runtime/config/config.h"
#include "runtime/plan/cost/machine.h"
#include "runtime/record/run_environment.h"
#include "runtime/run/session.h"

namespace millrace {

bool CudaBuiltIn();
// GPUs that this process may use; 0 without CUDA or a driver. Makes no context.
int VisibleGpus();

// What a rank needs of its device; `comms` moves that device's memory. Members die in reverse
// order.
struct RankDevice {
  std::unique_ptr<ProfilerRanges> ranges;  // null: no profiler listens
  std::unique_ptr<Device> device;
  std::unique_ptr<CommFactory> comms;  // null: the host's factory serves
  Environment environment;
  Machine machine;       // whose figures MFU and predictions use
  RunEnvironment facts;  // of the device and its libraries, for the record
  std::string notice;    // for rank 0 to say; "": nothing
};

// Backend for a configuration on this machine: execution.backend, or for `auto` cuda where it is
// built in and a GPU is visible. Error(kDevice) when cuda is asked for and no GPU is visible.
Backend ChooseBackend(const Config& config);
// Without a device: what it has for the arena is not known.
BackendTraits TraitsOf(Backend backend, int world);

// A collective: which GPU a rank takes is gpu_choice.h's.
// Error(kConfig) also where execution.peer_memory asks for what cannot be. `mesh` is the run's; the
// log outlives the result.
RankDevice MakeRankDevice(Backend backend, CommFactory& host, Log& log, const Config& config,
                          const Mesh& mesh);

// The part that needs CUDA; an error of ours in a build without it.
RankDevice MakeCudaRankDevice(CommFactory& host, Log& log, const Config& config, const Mesh& mesh);

}  // namespace millrace
