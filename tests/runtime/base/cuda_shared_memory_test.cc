// Memory of a GPU behind a file descriptor: taken as another process would.
#include "runtime/base/cuda/cuda_shared_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/cuda/driver_function.h"
#include "runtime/base/cuda/virtual_memory.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

TEST_CASE("what was written is found behind the descriptor, also once its maker has gone",
          "[base][gpu]") {
  const CudaDevice device(0);
  std::vector<float> values(700001);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) - 5;
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
  int descriptor = -1;
  int64_t mapped = 0;
  {
    const auto memory = MakeCudaSharedMemory(0, bytes + 256, "floats");
    mapped = memory->bytes();
    CHECK(memory->gpu().starts_with("GPU-"));
    CHECK(memory->gpu().size() == 40);
    MR_CUDA(cudaMemcpy(memory->data() + 256, values.data(), static_cast<size_t>(bytes),
                       cudaMemcpyHostToDevice));
    descriptor = memory->Share();
    CHECK_THROWS_AS(memory->Share(), Error);
    CHECK(memory->data() == nullptr);
  }
  auto* const import =
      DriverFunction<CUresult(CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType)>(
          "cuMemImportFromShareableHandle", 10020);
  CUmemGenericAllocationHandle taken = 0;
  REQUIRE(import(&taken, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS);
  close(descriptor);
  const VirtualMemory& driver = TheVirtualMemory();
  const auto size = static_cast<size_t>(mapped);
  CUdeviceptr at = 0;
  REQUIRE(driver.reserve(&at, size, 0, 0, 0) == CUDA_SUCCESS);
  MapMemory(MemoryOnGpu(0), at, size, taken, "what was shared");
  std::vector<float> found(values.size());
  MR_CUDA(cudaMemcpy(found.data(), reinterpret_cast<void*>(at + 256), static_cast<size_t>(bytes),
                     cudaMemcpyDeviceToHost));
  CHECK(found == values);
  driver.unmap(at, size);
  driver.unreserve(at, size);
  driver.release(taken);
}

}  // namespace
}  // namespace millrace
