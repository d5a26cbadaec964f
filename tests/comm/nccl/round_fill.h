// Operands written by a kernel right before the collective that reads them, other ones at each
// replay of a captured graph: a collective that starts too early reads the previous round's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "runtime/base/dtype.h"

namespace millrace::testing {

// The index that element i has in round `round`, for Whole(rank, index) of tests/comm/rank_data.h.
constexpr int64_t RoundIndex(int64_t round, int64_t i) { return 13 * round + i; }

// data[i] = Whole(rank, RoundIndex(*round, i)) for i in [0, n), f32 or bf16. Few blocks of unequal
// work, so that the last one ends late. `round` is in device memory.
void LaunchRoundFill(DType dtype, std::byte* data, int64_t n, int rank, const int64_t* round,
                     cudaStream_t stream);

// ++*round.
void LaunchNextRound(int64_t* round, cudaStream_t stream);

}  // namespace millrace::testing
