#include <catch2/catch.hpp>
#include <vector>

#include "runtime/base/cuda/cuda_check.h"
#include "tests/build/squares.h"

namespace millrace {

TEST_CASE("a kernel compiled by nvcc, linked by the C++ compiler, runs on this GPU", "[cuda]") {
  constexpr int kCount = 1009;
  void* device = nullptr;
  MR_CUDA(cudaMalloc(&device, kCount * sizeof(int32_t)));
  LaunchSquares(static_cast<int32_t*>(device), kCount);
  std::vector<int32_t> host(kCount, -1);
  MR_CUDA(cudaMemcpy(host.data(), device, kCount * sizeof(int32_t), cudaMemcpyDeviceToHost));
  MR_CUDA(cudaFree(device));
  const int architecture = host[0];
  CHECK(architecture >= 80);
  for (int i = 0; i < kCount; ++i) {
    CAPTURE(i);
    REQUIRE(host[static_cast<size_t>(i)] == i * i + architecture);
  }
}

}  // namespace millrace
