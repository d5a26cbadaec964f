#include "tools/cli/doctor/cuda_report.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <dlfcn.h>
#include <fmt/core.h>

#include "kernels/cuda/cuda_kernels.h"
#include "runtime/api/host_facts.h"
#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/error.h"
#include "tools/cli/doctor/known_answer.h"
#include "tools/cli/doctor/probe.h"

namespace millrace {
namespace {

constexpr int kProbeThreads = 32;

// cuDNN opens it by name when it compiles a fused kernel, long after the start.
LibraryReport InspectNvrtc() {
  const std::string name = fmt::format("libnvrtc.so.{}", CUDART_VERSION / 1000);
  LibraryReport nvrtc{"NVRTC", "", "", "", ""};
  if (void* handle = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL)) {
    nvrtc.file = LoadedFrom(dlsym(handle, "nvrtcVersion"));
  } else {
    nvrtc.trouble = name + " not found: cuDNN's attention cannot be compiled";
  }
  return nvrtc;
}

std::string TryKernel() {
  int host[kProbeThreads] = {};
  void* device = nullptr;
  cudaError_t status = cudaMalloc(&device, sizeof host);
  if (status == cudaSuccess) status = LaunchProbe(static_cast<int*>(device));
  if (status == cudaSuccess) status = cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost);
  cudaFree(device);
  cudaGetLastError();
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorUnsupportedPtxVersion)
    return "this program holds no code for this GPU: build with --//third_party/cuda:arch=sm_..";
  if (status != cudaSuccess) return fmt::format("{}", cudaGetErrorString(status));
  for (int i = 0; i < kProbeThreads; ++i)
    if (host[i] != 3 * i + 1)
      return fmt::format("a kernel wrote {} where {} is right", host[i], 3 * i + 1);
  return "";
}

// cuDNN opens most of its parts when a handle is made.
std::string TryHandles() {
  cublasLtHandle_t blas = nullptr;
  if (cublasLtCreate(&blas) != CUBLAS_STATUS_SUCCESS) return "cublasLtCreate failed";
  cublasLtDestroy(blas);
  cudnnHandle_t dnn = nullptr;
  if (const cudnnStatus_t status = cudnnCreate(&dnn); status != CUDNN_STATUS_SUCCESS)
    return fmt::format("cudnnCreate failed: {}", cudnnGetErrorString(status));
  cudnnDestroy(dnn);
  return "";
}

// Large enough for every multiprocessor to have a part in it.
std::string TryProducts(int ordinal) {
  constexpr int64_t kSize = 2048;
  try {
    CudaDevice device(ordinal);
    return KnownAnswerProducts(device, CudaKernels(), Backend::kCuda, kSize);
  } catch (const Error& error) {
    return error.what();
  }
}

GpuReport InspectGpu(int ordinal) {
  GpuReport gpu;
  gpu.ordinal = ordinal;
  cudaDeviceProp properties{};
  if (const cudaError_t status = cudaGetDeviceProperties(&properties, ordinal);
      status != cudaSuccess) {
    gpu.trouble = cudaGetErrorString(status);
    return gpu;
  }
  gpu.name = properties.name;
  gpu.pci = fmt::format("{:04x}:{:02x}:{:02x}", properties.pciDomainID, properties.pciBusID,
                        properties.pciDeviceID);
  gpu.compute_capability = fmt::format("{}.{}", properties.major, properties.minor);
  gpu.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  gpu.multiprocessors = properties.multiProcessorCount;
  if (const cudaError_t status = cudaSetDevice(ordinal); status != cudaSuccess) {
    gpu.trouble = cudaGetErrorString(status);
    return gpu;
  }
  gpu.trouble = TryKernel();
  if (gpu.trouble.empty()) gpu.trouble = TryHandles();
  if (gpu.trouble.empty()) gpu.trouble = TryProducts(ordinal);
  return gpu;
}

// Atomics on a peer's memory need NVLink; without them a reachable peer is on PCIe.
GpuLink LinkBetween(int from, int to) {
  if (from == to) return GpuLink::kSelf;
  int access = 0, atomics = 0;
  if (cudaDeviceGetP2PAttribute(&access, cudaDevP2PAttrAccessSupported, from, to) != cudaSuccess ||
      access == 0)
    return GpuLink::kNone;
  if (cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, from, to) !=
      cudaSuccess)
    atomics = 0;
  return atomics == 0 ? GpuLink::kPcie : GpuLink::kNvlink;
}

}  // namespace

CudaReport InspectCuda() {
  CudaReport report;
  report.built_in = true;
  report.libraries = LoadedCudaLibraries();
  report.libraries.push_back(InspectNvrtc());
  report.driver = CudaOfDriver();
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    report.trouble = report.driver.empty() ? "no NVIDIA driver" : cudaGetErrorString(status);
    cudaGetLastError();
    return report;
  }
  if (count == 0) report.trouble = "no GPU is visible (CUDA_VISIBLE_DEVICES?)";
  for (int from = 0; from < count; ++from) {
    report.gpus.push_back(InspectGpu(from));
    std::vector<GpuLink>& row = report.links.emplace_back();
    for (int to = 0; to < count; ++to) row.push_back(LinkBetween(from, to));
  }
  return report;
}

}  // namespace millrace
