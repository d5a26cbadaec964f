// What the scan's kernels share: places in its arrays, and exponents.
#pragma once

#include "kernels/cuda/mamba/gated.cuh"
#include "kernels/cuda/mamba/ssd_launch.h"

namespace millrace::cuda {

// A chunk of a head of a sequence.
struct SsdPlace {
  int batch, chunk, head;

  __device__ int begin(const SsdArgs& a) const { return chunk * a.chunk; }
  __device__ int count(const SsdArgs& a) const { return min(a.chunk, a.length - begin(a)); }
  __device__ int group(const SsdArgs& a) const { return head / a.heads_of_group; }
  // Into arrays [B,H,K,q], of the first position.
  __device__ int64_t position(const SsdArgs& a) const {
    return ((int64_t{batch} * a.heads + head) * a.chunks + chunk) * a.rows;
  }
  // Into arrays [B,K,H].
  __device__ int64_t of_head(const SsdArgs& a) const {
    return (int64_t{batch} * a.chunks + chunk) * a.heads + head;
  }
  __device__ int64_t state(const SsdArgs& a) const {  // [B,K,H,P,N]
    return of_head(a) * a.channels * a.states;
  }
  __device__ int64_t pairs_of_group(const SsdArgs& a) const {  // [B,K,G,q,q]
    return ((int64_t{batch} * a.chunks + chunk) * a.groups + group(a)) * a.rows * a.rows;
  }
  __device__ int64_t step(const SsdArgs& a, int i) const {  // of dt [B,T,H], position i
    return (int64_t{batch} * a.length + begin(a) + i) * a.heads + head;
  }
};

// Of position t, head or group h: the first element.
__device__ __forceinline__ int64_t RowAt(const Sequence& s, int batch, int t, int h) {
  return batch * s.batch_stride + t * s.rows.stride + h * s.head_stride;
}

__device__ __forceinline__ float DecayRate(const SsdArgs& a, int head) {
  return -expf(ElementOf(a.a_log, head));
}

}  // namespace millrace::cuda
