// Runs a test on all ranks, one GPU each: the processes of an mpirun, or threads of one process
// where there is none. The same test serves both.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm_factory.h"
#include "comm/nccl/nccl_options.h"
#include "runtime/base/cuda/cuda_device.h"
#include "tests/comm/communicator_contract.h"

namespace millrace::testing {

// What a rank has.
struct GpuRank {
  // Abort on its communicators is recorded, not carried out: it would end the test program.
  CommFactory& host;
  CommFactory& nccl;
  CudaDevice& device;
  Report& report;

  int rank() const { return host.rank(); }
  int world() const { return host.world_size(); }
  std::vector<int> Everyone() const;
};

// main() of a program: with MPI when mpirun started it. An exception of `body` ends all ranks.
int GpuMain(int argc, char** argv, const std::function<int()>& body);

// Calls fn on every rank; within GpuMain. Returns the reports of the ranks that run in this
// process. An exception of one rank ends the program (processes) or is thrown here (threads). A
// call that lasts longer than five minutes ends the program, saying so.
struct RankReport {
  int rank = 0;
  Report report;
};
std::vector<RankReport> RunOnGpus(const NcclOptions& options,
                                  const std::function<void(GpuRank& rank)>& fn);

// Ranks that RunOnGpus runs: of mpirun, or MILLRACE_TEST_RANKS, or as many as there are GPUs.
int GpuWorld();

// MILLRACE_TEST_ONE_GPU=1: all ranks have GPU 0, for what NCCL, which refuses that, has no part in.
bool OnOneGpu();

// Both ways of NCCL to move: staged, and between symmetric windows.
std::vector<NcclOptions> PlainAndSymmetric();

// Device memory that a communicator's operands lie in: the factory's arena, registered with `comms`
// while it lives. Offsets of what is taken are the same on all ranks that take the same.
class TestArena {
 public:
  TestArena(GpuRank& rank, std::vector<Communicator*> comms, int64_t bytes);
  ~TestArena();
  TestArena(const TestArena&) = delete;
  TestArena& operator=(const TestArena&) = delete;

  TensorView Take(DType dtype, int64_t n);  // aligned to 256 bytes
  void Reset() { taken_ = 0; }              // what was taken may be taken again

 private:
  std::vector<Communicator*> comms_;
  std::unique_ptr<DeviceBuffer> memory_;
  int64_t taken_ = 0;
};

template <typename T>
void ToDevice(GpuRank& rank, const std::vector<T>& values, const TensorView& view, Stream& stream) {
  rank.device.CopyFromHost(view.data, values.data(), view.bytes(), stream);
}
template <typename T>
std::vector<T> ToHost(GpuRank& rank, const TensorView& view, Stream& stream) {
  std::vector<T> values(static_cast<size_t>(view.numel()));
  rank.device.CopyToHost(values.data(), view.data, view.bytes(), stream);
  return values;
}

}  // namespace millrace::testing
