#include "comm/peer/peer_exchange.h"
#include "comm/peer/peer_wait.cuh"
#include "runtime/base/cuda/cuda_check.h"

namespace millrace {
namespace {

constexpr int kInFlight = 4;  // units that a thread has loaded
constexpr int kWarp = 32;

// Live bytes of each piece, by place in `pieces`: a warp adds the counts of one.
__device__ __forceinline__ void CountLive(const PeerPieces& pieces, int64_t* live) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  if (warp < pieces.count) {
    int rows = 0;
    if (pieces.counts != nullptr)
      for (int i = lane; i < pieces.counts_each; i += kWarp)
        rows += pieces.counts[pieces.piece[warp].rank * pieces.counts_each + i];
#pragma unroll
    for (int apart = kWarp / 2; apart > 0; apart /= 2)
      rows += __shfl_xor_sync(0xffffffffu, rows, apart);
    if (lane == 0)
      live[warp] =
          pieces.counts == nullptr ? pieces.bytes : min(pieces.bytes, rows * pieces.row_bytes);
  }
  __syncthreads();
}

template <class Unit>
__device__ __forceinline__ void Store(const PeerPieces::Piece& piece, int64_t bytes) {
  const Unit* const from = reinterpret_cast<const Unit*>(piece.from);
  Unit* const to = reinterpret_cast<Unit*>(piece.to);
  const int64_t units = bytes / static_cast<int64_t>(sizeof(Unit)),
                stride = static_cast<int64_t>(gridDim.x) * kPeerThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kPeerThreads + threadIdx.x; i < units;
       i += kInFlight * stride) {
    Unit unit[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u)
      if (i + u * stride < units) unit[u] = from[i + u * stride];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u)
      if (i + u * stride < units) to[i + u * stride] = unit[u];
  }
  // What is left is less than a unit.
  const int64_t tail = units * static_cast<int64_t>(sizeof(Unit)) + threadIdx.x;
  if (blockIdx.x == 0 && tail < bytes) piece.to[tail] = piece.from[tail];
}

template <class Unit>
__global__ void __launch_bounds__(kPeerThreads, 2)
    ExchangeKernel(const __grid_constant__ PeerCall call,
                   const __grid_constant__ PeerPieces pieces) {
  __shared__ int64_t live[kMaxPeers];
  const uint64_t number = EnterCall(call);
  if (number == 0) return;
  CountLive(pieces, live);
#pragma unroll 1
  for (int k = 0; k < pieces.count; ++k) Store<Unit>(pieces.piece[k], live[k]);
  LeaveCall(call, number);
}

bool Aligned(const PeerPieces& pieces, uintptr_t to) {
  uintptr_t all = 0;
  for (int k = 0; k < pieces.count; ++k)
    all |= reinterpret_cast<uintptr_t>(pieces.piece[k].from) |
           reinterpret_cast<uintptr_t>(pieces.piece[k].to);
  return all % to == 0;
}

}  // namespace

static_assert(kPeerThreads / kWarp >= kMaxPeers, "a warp counts the rows of a piece");

int PeerExchangeBlocksEach() {
  return BlocksEach(ExchangeKernel<uint4>, ExchangeKernel<uint32_t>, ExchangeKernel<uint8_t>);
}

void LaunchPeerExchange(const PeerCall& call, const PeerPieces& pieces, cudaStream_t stream) {
  const auto kernel = Aligned(pieces, 16)  ? ExchangeKernel<uint4>
                      : Aligned(pieces, 4) ? ExchangeKernel<uint32_t>
                                           : ExchangeKernel<uint8_t>;
  kernel<<<call.blocks, kPeerThreads, 0, stream>>>(call, pieces);
  MR_CUDA_LAUNCHED();
}

}  // namespace millrace
