// What the kernels of a run have moved.
#pragma once

#include <cstdint>

namespace millrace {

// Counted from the arguments that kernels were called with.
struct KernelCounters {
  int64_t concatenated_bytes = 0;  // read by concat, also within CUDA's matmul (staged_bytes)
  int64_t cast_bytes = 0;          // read by cast, and by gathers that round
  int64_t copied_bytes = 0;        // read by accumulate: reduced shards that did not land in place
  bool operator==(const KernelCounters&) const = default;

  KernelCounters& operator+=(const KernelCounters& d) {
    concatenated_bytes += d.concatenated_bytes;
    cast_bytes += d.cast_bytes;
    copied_bytes += d.copied_bytes;
    return *this;
  }
  KernelCounters operator-(const KernelCounters& b) const {
    return {concatenated_bytes - b.concatenated_bytes, cast_bytes - b.cast_bytes,
            copied_bytes - b.copied_bytes};
  }
};

}  // namespace millrace
