#include "comm/nccl/nccl_check.h"

#include <future>
#include <thread>
#include <utility>

#include "runtime/base/cuda/cuda_check.h"

namespace millrace {

std::string NcclWords(ncclResult_t result) {
  const char* const last = ncclGetLastError(nullptr);
  std::string words = ncclGetErrorString(result);
  if (last != nullptr && *last != '\0') words += fmt::format(" (last message: {})", last);
  return words;
}

ErrorCode NcclErrorCode(ncclResult_t result) noexcept {
  if (result == ncclRemoteError) return ErrorCode::kPeerLost;
  if (result == ncclUnhandledCudaError) return ErrorCode::kDevice;
  return ErrorCode::kComm;
}

void CheckNccl(ncclResult_t result, const std::string& where, const char* call) {
  if (result == ncclSuccess) return;
  throw Error(NcclErrorCode(result),
              fmt::format("{}: {} failed: {}", where, call, NcclWords(result)));
}

int NcclVersion() {
  int version = 0;
  CheckNccl(ncclGetVersion(&version), "NCCL's version", "ncclGetVersion");
  return version;
}

ncclResult_t Settled(ncclResult_t result, ncclComm_t comm, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (result == ncclInProgress && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
    result = asked == ncclSuccess ? state : asked;
  }
  return result;
}

std::optional<std::string> RunWithin(int ordinal, std::chrono::milliseconds timeout,
                                     std::function<std::string()> fn) {
  std::packaged_task<std::string()> task([ordinal, fn = std::move(fn)] {
    MR_CUDA(cudaSetDevice(ordinal));
    return fn();
  });
  std::future<std::string> outcome = task.get_future();
  std::thread thread(std::move(task));
  if (outcome.wait_for(timeout) == std::future_status::timeout) {
    thread.detach();
    return std::nullopt;
  }
  thread.join();
  return outcome.get();
}

}  // namespace millrace
