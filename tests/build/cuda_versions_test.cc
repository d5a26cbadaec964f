#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <cudnn_frontend_version.h>
#include <nccl.h>

#include <catch2/catch.hpp>

TEST_CASE("each CUDA library that is loaded is the one whose headers were compiled in", "[cuda]") {
  int runtime = 0;
  REQUIRE(cudaRuntimeGetVersion(&runtime) == cudaSuccess);
  CHECK(runtime == CUDART_VERSION);
  CHECK(cublasLtGetVersion() == CUBLAS_VERSION);
  CHECK(cudnnGetVersion() == CUDNN_VERSION);
  int nccl = 0;
  REQUIRE(ncclGetVersion(&nccl) == ncclSuccess);
  CHECK(nccl == NCCL_VERSION_CODE);
  CHECK(CUDNN_FRONTEND_VERSION == 13200);
}
