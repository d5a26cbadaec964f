// The kernel of several RowLinearOps, one behind the other: what each by itself would do, with the
// same bits, in one launch. Weights are fetched without a pause: those of the next linears come
// while blocks wait for all of a row.
//
// Blocks   One to a multiprocessor, all at once on the device: a cooperative launch, so that two
//          such kernels never hold places that the other waits for. It begins when all
//          multiprocessors have room: a kernel that waits for what comes behind this one on the
//          device, such as a collective's of another run, must not come before it.
// Order    All blocks have done with a linear before one begins the next: x and residual may be
//          results of those before, and any result may lie where what is no longer needed lay.
//          Constants, `at` and `table` are read before that.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/matmul/one_row.h"
#include "runtime/base/cuda/launch.h"

namespace millrace::cuda {

inline constexpr int kMostChain = 4;

// Whether the kernel may take it: a norm of at most kMostRowNormInChain, which leaves most of
// shared memory to weights, and constants.
bool FitsRowChain(const OneRowArgs& linear);
inline constexpr int kMostRowNormInChain = 4096;
// Whether a gain comes of it: two or more, and bytes of weights. 14 MB gain nothing over kernels of
// their own, 122 MB 13 %, 436 MB 3 % (attention of 4 us between, H200, 2026-11-29).
bool GainsAsRowChain(std::span<const OneRowArgs> linears);
inline constexpr int64_t kLeastChainBytes = int64_t{48} << 20;

// Whether the device has the room, and launches that are all there at once.
bool HasRowChain(const cudaDeviceProp& device);
// Of linears that fit, up to kMostChain. `next` is the chain that comes behind this one and what
// lies between, or none: its first weights are fetched into the second cache, and nothing else of
// it is looked at. `word` is where blocks meet: zero before the first launch, then this kernel's
// alone, and of one launch at a time.
void LaunchRowChain(std::span<const OneRowArgs> linears, std::span<const OneRowArgs> next,
                    uint64_t* word, const Launch& launch);

}  // namespace millrace::cuda
