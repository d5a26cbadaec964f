// A function of the CUDA driver without linking to it: machines that only build have none.
#pragma once

#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/error.h"

namespace millrace {

// `name` as it was first in CUDA 1000*major + 10*minor. Error(kDevice): this driver has none.
template <class Function>
Function* DriverFunction(const char* name, unsigned cuda_version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  MR_CUDA(
      cudaGetDriverEntryPointByVersion(name, &function, cuda_version, cudaEnableDefault, &found));
  MR_REQUIRE(ErrorCode::kDevice, found == cudaDriverEntryPointSuccess && function != nullptr,
             "this driver has no {}", name);
  return reinterpret_cast<Function*>(function);
}

}  // namespace millrace
