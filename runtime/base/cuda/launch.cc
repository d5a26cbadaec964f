#include "runtime/base/cuda/launch.h"

#include <cstdint>

#include "runtime/base/cuda/cuda_check.h"

namespace millrace::cuda {

void LetBeginEarly(const Launch& launch) {
  if (launch.early == EarlyLaunch::kOff) return;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  size_t count = 0;
  MR_CUDA(
      cudaStreamGetCaptureInfo(launch.stream, &status, nullptr, nullptr, &nodes, &edges, &count));
  if (status != cudaStreamCaptureStatusActive || count != 1) return;
  // An edge that somebody has made another kind already.
  if (edges != nullptr &&
      (edges[0].type != cudaGraphDependencyTypeDefault || edges[0].from_port != 0))
    return;
  cudaGraphNode_t before = nodes[0];
  cudaGraphNodeType type{};
  // The runtime has no name for a stream's memory operations, which a library may have put there.
  const cudaError_t status_of_type = cudaGraphNodeGetType(before, &type);
  if (status_of_type == cudaErrorUnknown) {
    static_cast<void>(cudaGetLastError());
    return;
  }
  MR_CUDA(status_of_type);
  // The greatest is that of collectives alone (StreamRole); there may be one priority for all.
  int priority = 0, least = 0, greatest = 0;
  MR_CUDA(cudaStreamGetPriority(launch.stream, &priority));
  MR_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  const bool collectives = priority == greatest && greatest != least;
  if (type != cudaGraphNodeTypeKernel || collectives) return;
  cudaGraphEdgeData edge{};
  edge.type = cudaGraphDependencyTypeProgrammatic;
  edge.from_port = launch.early == EarlyLaunch::kBegin ? cudaGraphKernelNodePortLaunchCompletion
                                                       : cudaGraphKernelNodePortProgrammatic;
  MR_CUDA(cudaStreamUpdateCaptureDependencies(launch.stream, &before, &edge, 1,
                                              cudaStreamSetCaptureDependencies));
}

cudaLaunchAttribute SharedMemorySplit() {
  cudaLaunchAttribute split{};
  split.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  split.val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  return split;
}

bool AsksForSplit(const Launch& launch, dim3 grid) {
  const int64_t blocks = int64_t{grid.x} * grid.y * grid.z;
  return launch.early != EarlyLaunch::kOff && (launch.one_row || 4 * blocks <= launch.sms);
}

}  // namespace millrace::cuda
