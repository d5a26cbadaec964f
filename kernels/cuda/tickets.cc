#include "kernels/cuda/tickets.h"

#include "runtime/base/cuda/cuda_check.h"

namespace millrace::cuda {
namespace {

// Zero before the function returns, whatever other streams are doing or capturing.
void Zero(uint64_t* words, size_t count) {
  cudaStream_t stream = nullptr;
  MR_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const cudaError_t set = cudaMemsetAsync(words, 0, count * sizeof *words, stream);
  const cudaError_t done = cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
  MR_CUDA(set);
  MR_CUDA(done);
}

}  // namespace

Tickets::~Tickets() {
  for (uint64_t* chunk : chunks_) cudaFree(chunk);
}

uint64_t* Tickets::Of(const std::byte* written) {
  const auto found = words_.find(written);
  if (found != words_.end()) return found->second;
  const size_t used = words_.size() % kWords;
  if (used == 0) {
    void* chunk = nullptr;
    MR_CUDA(cudaMalloc(&chunk, kWords * sizeof(uint64_t)));
    chunks_.push_back(static_cast<uint64_t*>(chunk));
    Zero(chunks_.back(), kWords);
  }
  return words_[written] = chunks_.back() + used;
}

}  // namespace millrace::cuda
