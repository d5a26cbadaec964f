// Kernels around collectives under test: ranks that come late, and results that are checked on the
// device, so that a stream of rounds needs no host between them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "runtime/base/dtype.h"

namespace millrace::testing {

// Occupies the stream for a time that depends on (rank, *round, salt): none every other
// time, else up to `most_us`.
void LaunchDelay(int rank, const int64_t* round, int salt, int most_us, cudaStream_t stream);

// Occupies the stream for `us` microseconds.
void LaunchPause(int us, cudaStream_t stream);

// What element i of a result of round *round is, with Whole of tests/comm/rank_data.h and
// RoundIndex of tests/comm/nccl/round_fill.h.
enum class RoundResult {
  // shard [n] of rank `rank`: the sum over `world` ranks of
  // Whole(., RoundIndex(round, rank * n + i)).
  kSums,
  kGathered  // full [world * m], n = world * m: Whole(i / m, RoundIndex(round, i % m))
};

// *wrong += elements of data [n], f32, bf16 or f16, that are not that.
void LaunchRoundCheck(RoundResult result, DType dtype, const std::byte* data, int64_t n, int rank,
                      int world, const int64_t* round, unsigned long long* wrong,
                      cudaStream_t stream);

}  // namespace millrace::testing
