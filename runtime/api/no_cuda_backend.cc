// A build without CUDA.
#include "runtime/api/backend.h"
#include "runtime/api/cuda_libraries.h"
#include "runtime/api/memory_to_share.h"
#include "runtime/base/cpu/host_shared_memory.h"
#include "runtime/base/error.h"

namespace millrace {

bool CudaBuiltIn() { return false; }
int VisibleGpus() { return 0; }
std::string WhyNoGpu() { return "this build has no CUDA"; }
std::vector<LibraryReport> LoadedCudaLibraries() { return {}; }
std::string CudaOfDriver() { return ""; }

RankDevice MakeCudaRankDevice(CommFactory&, Log&, const Config&, const Mesh&, std::optional<int>) {
  MR_FAIL("this build has no CUDA");
}

int OrdinalOf(const Device&) { return 0; }
std::string UuidOf(const Device&) { return ""; }
void WaitForAllOf(const Device&) {}
std::unique_ptr<SharedMemory> MemoryToShare(const Device&, int64_t bytes,
                                            const std::string& label) {
  return MakeHostSharedMemory(bytes, label);
}
DeviceOfThread::DeviceOfThread() noexcept = default;
DeviceOfThread::~DeviceOfThread() = default;
void DeviceOfThread::Use(const Device&) {}

}  // namespace millrace
