// Tiles of bf16 operands in shared memory, and products of them on tensor cores (mma.sync).
//
// Layout  A tile has kDepth of the depth and kSize across (rows of a, columns of b). A line of it
//         is what are neighbours in memory: along the depth (kDepth), 128 bytes, or across
//         (kAcross), 2*kSize bytes, a multiple of 128. Its chunks of 16 bytes are permuted, chunk c
//         of line r lies at c ^ (r % 8): the eight lines that a load of matrices takes at once, or
//         a warp writes, are in different banks.
// Source  PTX ISA 8.7, 9.7.14 (mma.m16n8k16, ldmatrix, and the elements of a fragment that each
//         lane holds), 9.7.9.25 (cp.async).
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::cuda {

inline constexpr int kDepth = 64;

enum class Line { kDepth, kAcross };

// 16 bytes, zeros if not `inside`.
__device__ __forceinline__ void CopyChunk(uint32_t shared, const std::byte* global, bool inside) {
  const int bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared), "l"(global), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" : : : "memory");
}
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kPending) : "memory");
}

template <Line L, int kSize>
__device__ __forceinline__ uint32_t ChunkAt(int line, int chunk) {
  constexpr int kLineBytes = L == Line::kDepth ? kDepth * 2 : kSize * 2;
  return static_cast<uint32_t>(line * kLineBytes + (chunk ^ (line % 8)) * 16);
}

// Elements across from `first` on and k from k0 on; zeros beyond the limits, which are multiples of
// eight along a line. `stride`: elements from line to line in memory.
template <Line L, int kSize, int kThreads>
__device__ __forceinline__ void CopyTile(uint32_t shared, const std::byte* data, int64_t stride,
                                         int first, int limit, int k0, int k_limit) {
  constexpr int kLines = L == Line::kDepth ? kSize : kDepth,
                kChunks = (L == Line::kDepth ? kDepth : kSize) / 8;
  static_assert(kLines * kChunks % kThreads == 0);
#pragma unroll
  for (int i = 0; i < kLines * kChunks / kThreads; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x), line = at / kChunks,
              chunk = at % kChunks;
    const int across = first + (L == Line::kDepth ? line : chunk * 8),
              k = k0 + (L == Line::kDepth ? chunk * 8 : line);
    const bool inside = across < limit && k < k_limit;
    const int64_t element = L == Line::kDepth ? across * stride + k : k * stride + across;
    CopyChunk(shared + ChunkAt<L, kSize>(line, chunk), inside ? data + element * 2 : data, inside);
  }
}

// Four matrices of 8 x 8; lane l gives the address of row l%8 of matrix l/8. Lane l holds elements
// 2 (l%4) and the next of row l/4, or, transposed, of column l/4.
template <bool kTransposed>
__device__ __forceinline__ void LoadMatrices(uint32_t (&r)[4], uint32_t address) {
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// Rows [m, m + 16) and depth [k, k + 16) of a: matrices (rows 0-7, k 0-7), (8-15, 0-7), (0-7,
// 8-15), (8-15, 8-15).
template <Line L, int kSize>
__device__ __forceinline__ void LoadA(uint32_t (&r)[4], uint32_t shared, int m, int k) {
  const int lane = static_cast<int>(threadIdx.x) % 32, matrix = lane / 8, row = lane % 8;
  if constexpr (L == Line::kDepth)
    LoadMatrices<false>(r,
                        shared + ChunkAt<L, kSize>(m + matrix % 2 * 8 + row, k / 8 + matrix / 2));
  else
    LoadMatrices<true>(r, shared + ChunkAt<L, kSize>(k + matrix / 2 * 8 + row, m / 8 + matrix % 2));
}

// Columns [n, n + 16) and depth [k, k + 16) of b: matrices (columns 0-7, k 0-7), (0-7, 8-15),
// (8-15, 0-7), (8-15, 8-15).
template <Line L, int kSize>
__device__ __forceinline__ void LoadB(uint32_t (&r)[4], uint32_t shared, int n, int k) {
  const int lane = static_cast<int>(threadIdx.x) % 32, matrix = lane / 8, row = lane % 8;
  if constexpr (L == Line::kDepth)
    LoadMatrices<false>(r,
                        shared + ChunkAt<L, kSize>(n + matrix / 2 * 8 + row, k / 8 + matrix % 2));
  else
    LoadMatrices<true>(r, shared + ChunkAt<L, kSize>(k + matrix % 2 * 8 + row, n / 8 + matrix / 2));
}

// sums += a [16,16] b [16,8].
__device__ __forceinline__ void MultiplyAdd(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace millrace::cuda
