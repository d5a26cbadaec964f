// How the CPU backend cuts its ops into blocks, and the scratch that follows. Planning
// and kernels/cpu read the same numbers here, so that a planned workspace always is the
// one the kernel carves up.
//
// Results may depend on a block size (a different block, a different order of additions), never on
// which operands need scratch: every variant of an op (overwrite or accumulate, f32 or bf16
// destination) is cut the same way.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/ops/access.h"
#include "kernels/ops/ssd_sizes.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

// Elements of a row that a kernel holds as float at a time; a few such buffers live on the stack.
inline constexpr int64_t kChunk = 512;

// The product of a matmul is formed in tiles of at most kTile x kTile, each over all of K
// at once when both operands are f32. Operands in bf16 are converted tile by tile,
// kMatmulDepth of K at a time.
inline constexpr int64_t kMatmulTile = 512;
inline constexpr int64_t kMatmulDepth = 2048;
static_assert(kMatmulTile <= kChunk);

struct MatmulBlocks {
  int64_t m, n, k;  // largest tile
};

inline MatmulBlocks BlocksOfMatmul(int64_t m, int64_t n, int64_t k, DType a, DType b) {
  const bool convert = a != DType::kF32 || b != DType::kF32;
  return {std::min(m, kMatmulTile), std::min(n, kMatmulTile),
          convert ? std::min(k, kMatmulDepth) : k};
}

// Scratch of a matmul whose rows have the bits of a product of `like_rows` rows and n columns, of
// which it forms tiles with its rows in some places: rows of a, and of the product, twice. With
// `part`, its columns in some places too.
inline int64_t AlikeBytes(int64_t like_rows, int64_t n, int64_t k, DType a, DType b, bool part) {
  const MatmulBlocks tile = BlocksOfMatmul(like_rows, n, k, a, b);
  const int64_t converted = part || b != DType::kF32 ? tile.k * tile.n : 0;
  return (2 * tile.m * tile.n + tile.m * tile.k + converted) * 4;
}

// Whether the product can be formed in the destination itself; else a tile of scratch holds it.
inline bool ProductInPlace(const Layout& out, Update update) {
  return update == Update::kOverwrite && out.dtype == DType::kF32 &&
         (out.dims[1] <= 1 || out.strides[1] == 1);
}

// Query rows per block of attention. Keys after the block's last row are skipped.
inline constexpr int64_t kAttentionRows = 64;

// Whether an operand of attention enters and leaves its products where it lies; else they go by f32
// buffers. With sequences split over a context group, keys lie in the gathered order, and a block
// of queries may begin before this rank's rows do (attention.cc).
inline bool AttentionInPlace(DType dtype, bool split) { return dtype == DType::kF32 && !split; }

// The widest convolution of a Mamba-2 mixer.
inline constexpr int64_t kConvWidth = 8;

// Scratch of the scan, which takes one head of one sequence at a time: f32 copies of a chunk's rows
// (x and dt*x; b, c), its pairs of positions, a state. Positions have their decay in double.
inline int64_t SsdScanBytes(const SsdSizes& s) {
  const int64_t q = s.rows(),
                floats = 2 * q + 3 * q * s.channels + 2 * q * s.states + q * q + s.state();
  return floats * 4;
}
// Its gradient: d_out, too, and products of that, two more kinds of pairs, the state before each
// chunk, and of a whole sequence the sums over a group's heads.
inline int64_t SsdScanGradBytes(const SsdSizes& s) {
  const int64_t q = s.rows(), vectors = 6 * q + 4 * s.heads, of_channels = 4 * q * s.channels,
                of_states = 2 * q * s.states, widest = q * std::max(s.channels, s.states),
                pairs = 2 * q * q, states = (s.chunks() + 1) * s.state(),
                sums = 2 * s.length * s.states;
  return (vectors + of_channels + of_states + widest + pairs + states + sums) * 4;
}

// Rows whose contributions are summed before they join the total of a column sum: halves the
// exponent of the error's growth.
inline constexpr int64_t kSumRows = 64;

}  // namespace millrace::cpu
