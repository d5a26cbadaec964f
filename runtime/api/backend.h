// Which device a rank runs on. cuda_backend.cc implements the half that needs CUDA; a build without
// it links no_cuda_backend.cc instead.
#pragma once

#include <memory>
#include <optional>
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
// Of VisibleGpus() == 0, in CUDA's words.
std::string WhyNoGpu();

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

// A collective: which GPU a rank takes is gpu_choice.h's, unless `gpu` says so on every rank.
// Error(kConfig) also where execution.peer_memory asks for what cannot be. `mesh` is the run's; the
// log outlives the result.
RankDevice MakeRankDevice(Backend backend, CommFactory& host, Log& log, const Config& config,
                          const Mesh& mesh, std::optional<int> gpu = std::nullopt);

// The part that needs CUDA; an error of ours in a build without it.
RankDevice MakeCudaRankDevice(CommFactory& host, Log& log, const Config& config, const Mesh& mesh,
                              std::optional<int> gpu);

// A GPU's number among those that this process sees; 0 of a host.
int OrdinalOf(const Device& device);
// A GPU's id as `nvidia-smi -L` writes it, "GPU-5d3e9a1c-...", whichever of the GPUs this process
// sees; "" of a host.
std::string UuidOf(const Device& device);
// Blocks until all that any part of this process has given a GPU to do is done, whatever stream it
// is on; a host has nothing to wait for.
void WaitForAllOf(const Device& device);

// CUDA's current device is each thread's own, and belongs to the program that calls: what the
// thread had comes back at the end of the scope. Of a host: nothing.
class DeviceOfThread {
 public:
  DeviceOfThread() noexcept;
  ~DeviceOfThread();
  DeviceOfThread(const DeviceOfThread&) = delete;
  DeviceOfThread& operator=(const DeviceOfThread&) = delete;
  void Use(const Device& device);

 private:
  void* had_ = nullptr;  // a context
};

}  // namespace millrace
