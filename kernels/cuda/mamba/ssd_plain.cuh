// The f32 kernels of the scan: a thread per element, and how it finds its operands.
#pragma once

#include "kernels/cuda/mamba/ssd_device.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {

inline constexpr int kPlainThreads = 128;

__device__ __forceinline__ int64_t PlainElement() {
  return int64_t{blockIdx.x} * kPlainThreads + threadIdx.x;
}

template <class Kernel>
void LaunchPlain(const Launch& launch, int64_t elements, Kernel kernel, const SsdArgs& a) {
  if (elements > 0)
    LaunchKernel(launch, static_cast<unsigned>(CeilDiv(elements, kPlainThreads)), kPlainThreads, 0,
                 kernel, a);
}

// Of arrays [B,K,H].
__device__ __forceinline__ SsdPlace PlaceOf(const SsdArgs& a, int64_t e) {
  const int64_t chunks = e / a.heads;
  return {static_cast<int>(chunks / a.chunks), static_cast<int>(chunks % a.chunks),
          static_cast<int>(e % a.heads)};
}

__device__ __forceinline__ float At(const Sequence& s, int batch, int t, int h, int column) {
  return ElementOf(s.rows, RowAt(s, batch, t, h) + column);
}

// exp(s[i] - s[j]); exp(s[i]).
__device__ __forceinline__ float Between(const SsdArgs& a, const SsdPlace& p, int i, int j) {
  const double* const decay = static_cast<const double*>(a.decay) + p.position(a);
  return expf(static_cast<float>(__dsub_rn(decay[i], decay[j])));
}
__device__ __forceinline__ float FromStart(const SsdArgs& a, const SsdPlace& p, int i) {
  return expf(static_cast<float>((static_cast<const double*>(a.decay) + p.position(a))[i]));
}

// c[i].b[j], j <= i.
__device__ __forceinline__ float Pair(const SsdArgs& a, const SsdPlace& p, int i, int j) {
  return a.steps_or_pairs[p.pairs_of_group(a) + int64_t{i} * a.rows + j];
}

// The e-th element of [B,T,H,columns].
struct PlainRow {
  SsdPlace place;
  int i, column;  // position in the chunk
  bool inside;

  __device__ PlainRow(const SsdArgs& a, int64_t e, int columns)
      : column(static_cast<int>(e % columns)),
        inside(e < int64_t{a.batch} * a.length * a.heads * columns) {
    const int64_t row = e / columns, position = row / a.heads;
    const int t = static_cast<int>(position % a.length);
    place = {static_cast<int>(position / a.length), t / a.chunk, static_cast<int>(row % a.heads)};
    i = t % a.chunk;
  }
};

// The gradients, once the states and their gradients are there.
void LaunchSsdGradientsPlain(const SsdArgs& args, const Launch& launch);

}  // namespace millrace::cuda
