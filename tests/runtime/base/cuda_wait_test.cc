// Waits for a GPU, one of whose streams is captured by another thread.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/cuda/gpu_wait.h"

namespace millrace {
namespace {

TEST_CASE("a wait for the GPU comes behind a capture, which is whole", "[base][gpu]") {
  CudaDevice device(0);
  const auto stream = device.MakeStream(StreamRole::kCompute);
  const auto buffer = device.Allocate(4096, "bytes");
  device.EnqueueFill(buffer->data(), std::byte{1}, 4096, *stream);
  stream->Sync();
  device.BeginCapture(*stream);
  std::atomic<bool> waited = false;
  cudaError_t status = cudaSuccess;
  std::thread other([&] {
    MR_CUDA(cudaSetDevice(0));
    status = WaitForGpu();
    waited = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK_FALSE(waited);
  device.EnqueueFill(buffer->data(), std::byte{7}, 4096, *stream);
  const auto graph = device.EndCapture(*stream);
  other.join();
  CHECK(status == cudaSuccess);
  graph->Launch(*stream);
  std::byte last{};
  device.CopyToHost(&last, buffer->data() + 4095, 1, *stream);
  CHECK(last == std::byte{7});
}

}  // namespace
}  // namespace millrace
