// A warp's products of bf16 tiles with f32 sums (mma.sync m16n8k16), and how their operands come
// from shared memory (ldmatrix) and that from global memory (cp.async).
//
// Fragments  of lane l, g = l / 4, q = 2 * (l % 4):
//   a [16,16]  a[0]: row g, columns q, q+1; a[1]: row g+8; a[2], a[3]: the same, columns + 8
//   b [16,8]   b0: rows q, q+1 of column g; b1: rows + 8
//   d [16,8]   d[0], d[1]: row g, columns q, q+1; d[2], d[3]: row g+8
//   So two d side by side, rounded, are an a: FragmentOf.
// Source  PTX ISA 8.7, 9.7.14.5 (mma) and 9.7.14.5.15 (ldmatrix).
#pragma once

#include <cstdint>

#include "kernels/cuda/pack.cuh"

namespace millrace::cuda {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// d += a b.
__device__ __forceinline__ void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8x8 matrices; lane l names row l % 8 of matrix l / 8, 16 bytes.
__device__ __forceinline__ void LoadMatrices(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void LoadMatrices(uint32_t (&r)[4], const void* row) {
  LoadMatrices(r, SharedAddress(row));
}
__device__ __forceinline__ void LoadTransposed(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void LoadTransposed(uint32_t (&r)[4], const void* row) {
  LoadTransposed(r, SharedAddress(row));
}

__device__ __forceinline__ void CopyAsync16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(SharedAddress(shared)), "l"(global)
               : "memory");
}
// Zeros unless `inside`; nothing is read then.
__device__ __forceinline__ void CopyAsync16(uint32_t shared, const void* global, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared), "l"(global), "r"(inside ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" : : : "memory");
}
// All but the last kLater groups have arrived, of this thread's copies.
template <int kLater>
__device__ __forceinline__ void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kLater) : "memory");
}

__device__ __forceinline__ void FragmentOf(uint32_t (&a)[4], const float (&left)[4],
                                           const float (&right)[4]) {
  a[0] = PairOfBF16(left[0], left[1]);
  a[1] = PairOfBF16(left[2], left[3]);
  a[2] = PairOfBF16(right[0], right[1]);
  a[3] = PairOfBF16(right[2], right[3]);
}

}  // namespace millrace::cuda
