// Bytes between GPUs, counted by the kernels that move them, in builds that check what the
// communicator counts: --define=count_peer_bytes=true. Otherwise the kernels are as without it.
#pragma once

#include <cstdint>

namespace millrace {

#ifdef MR_COUNT_PEER_BYTES
inline constexpr bool kCountsPeerBytes = true;
#else
inline constexpr bool kCountsPeerBytes = false;
#endif

// What one thread has moved.
class PeerByteCount {
 public:
  __device__ __forceinline__ void Add(int64_t bytes) {
    if constexpr (kCountsPeerBytes) bytes_ += static_cast<unsigned long long>(bytes);
  }
  __device__ __forceinline__ void AddTo(unsigned long long* total) const {
    if constexpr (kCountsPeerBytes)
      if (bytes_ > 0) atomicAdd(total, bytes_);
  }

 private:
  unsigned long long bytes_ = 0;
};

}  // namespace millrace
