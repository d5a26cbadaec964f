// Tensors as the copy engine (TMA) of Hopper and later takes them: tma.cuh.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace millrace::cuda {

// bf16 of three dims, the first of neighbours; strides in elements of the other two, multiples of
// eight, the address a multiple of 16 bytes. A copy brings a box of 64 of the first dim and
// `box_rows`, at most 256, of the second, in lines of 128 bytes that are permuted as wgmma.cuh
// says, and zeros beyond the dims, of which none is 0.
// The map holds the address: for whatever lies there, as long as it is allocated.
// Error(kDevice): the driver refuses.
CUtensorMap MapOfBF16(const std::byte* data, std::array<int64_t, 3> dims,
                      std::array<int64_t, 2> strides, int box_rows);

}  // namespace millrace::cuda
