#include "runtime/api/cuda_libraries.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <fmt/core.h>
#include <nccl.h>

#include "runtime/api/host_facts.h"

namespace millrace {
namespace {

// As CUDART_VERSION counts; cuBLASLt, cuDNN 9 and NCCL count in ten thousands.
std::string CudaVersion(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}
std::string Dotted(int64_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

// The same major version is the library's promise to work; an older minor one may
// lack what was compiled in.
std::string VersionTrouble(int64_t compiled, int64_t loaded, int64_t major_unit) {
  if (loaded / major_unit != compiled / major_unit)
    return "another major version than it was compiled with";
  if (loaded < compiled) return "older than what it was compiled with";
  return "";
}

}  // namespace

std::vector<LibraryReport> LoadedCudaLibraries() {
  std::vector<LibraryReport> libraries;
  int runtime = 0;
  cudaRuntimeGetVersion(&runtime);
  libraries.push_back({"CUDA runtime", CudaVersion(CUDART_VERSION), CudaVersion(runtime), "", ""});

  const auto blas = static_cast<int64_t>(cublasLtGetVersion());
  libraries.push_back({"cuBLASLt", Dotted(CUBLAS_VERSION), Dotted(blas),
                       LoadedFrom(reinterpret_cast<const void*>(&cublasLtGetVersion)),
                       VersionTrouble(CUBLAS_VERSION, blas, 10000)});

  const auto dnn = static_cast<int64_t>(cudnnGetVersion());
  libraries.push_back({"cuDNN", Dotted(CUDNN_VERSION), Dotted(dnn),
                       LoadedFrom(reinterpret_cast<const void*>(&cudnnGetVersion)),
                       VersionTrouble(CUDNN_VERSION, dnn, 10000)});

  int nccl = 0;
  ncclGetVersion(&nccl);
  libraries.push_back({"NCCL", Dotted(NCCL_VERSION_CODE), Dotted(nccl),
                       LoadedFrom(reinterpret_cast<const void*>(&ncclGetVersion)),
                       VersionTrouble(NCCL_VERSION_CODE, nccl, 10000)});
  return libraries;
}

std::string CudaOfDriver() {
  int driver = 0;
  return cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0 ? CudaVersion(driver) : "";
}

}  // namespace millrace
