// Products of bf16 tiles in shared memory by a warpgroup's tensor cores (wgmma), with f32 sums in
// registers.
//
// Tiles   Elements lie in lines of 128 bytes, eight lines to 1024 bytes; chunk c of 16 bytes of
//         line r is at c ^ (r % 8), as TMA's 128-byte swizzle writes them. A line is 64 of the
//         depth of one row (of one column of b), or 64 rows of one step of the depth; then boxes of
//         64 rows and a depth of 64 lie one behind the other.
// Sums    Of [64, kN]: warp w of the warpgroup has rows 16 w to 16 w + 15, its lane l of each
//         eight columns j row l/4, columns 8 j + 2 (l%4) and the next in sums[4 j], sums[4 j + 1],
//         and of row l/4 + 8 in the two behind.
// Order   Between FenceSums and WaitForProducts nothing else may touch the sums.
// Source  PTX ISA 9.0, 9.7.15 (asynchronous warpgroup-level matrix instructions).
#pragma once

#include <cstdint>

namespace millrace::cuda {

enum class Lines { kDepth, kRows };

inline constexpr int kWarpgroup = 128;  // threads
inline constexpr int kBoxRows = 64, kBoxDepth = 64, kLineBytes = kBoxDepth * 2,
                     kBoxBytes = kBoxRows * kLineBytes;

// Of a tile at a multiple of 1024 bytes. Boxes of kRows lie kApart bytes from each other.
template <Lines L, int kApart = kBoxBytes>
__device__ __forceinline__ uint64_t TileDescriptor(uint32_t shared) {
  constexpr uint64_t kBetweenEights = 1024, kBetweenBoxes = L == Lines::kRows ? kApart : 16;
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | kBetweenEights / 16 << 32 | kBetweenBoxes / 16 << 16 |
         (shared & 0x3ffff) / 16;
}
// Of a b of eight columns, the first of which lies dense at a multiple of 16 bytes. The others are
// what lies 16 bytes further on each, the last up to 112 bytes behind the first: their sums are
// nobody's. Steps are those of Lines::kDepth, and a box of the depth is 128 bytes.
__device__ __forceinline__ uint64_t LineDescriptor(uint32_t shared) {
  // Not swizzled: eights of the depth by eight columns of 16 bytes each; two eights are a step.
  constexpr uint64_t kBetweenColumnEights = 16, kBetweenDepthEights = 16;
  return kBetweenColumnEights / 16 << 32 | kBetweenDepthEights / 16 << 16 | (shared & 0x3ffff) / 16;
}
// From a depth to one 16 further on.
template <Lines L>
inline constexpr uint64_t kDepthStep = (L == Lines::kDepth ? 32 : 16 * 128) / 16;

__device__ __forceinline__ void FenceSums() {
  asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}
__device__ __forceinline__ void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}
// All but the last kLater groups are complete.
template <int kLater>
__device__ __forceinline__ void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kLater) : "memory");
}

#define MR_F4(i) "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3])
#define MR_F16(i) MR_F4(i), MR_F4(i + 4), MR_F4(i + 8), MR_F4(i + 12)
#define MR_F64(i) MR_F16(i), MR_F16(i + 16), MR_F16(i + 32), MR_F16(i + 48)
#define MR_NAMES_32                                                                       \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MR_NAMES_64                                                                       \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, " \
  "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// sums (=|+=) a[64, 16] b[16, kN] of two tiles; = if !add.
template <int kN, Lines A, Lines B>
__device__ __forceinline__ void MultiplyTiles(float (&s)[kN / 2], uint64_t a, uint64_t b,
                                              bool add) {
#define MR_WGMMA(n, names, a_at, b_at, add_at, a_lines, b_lines, ...)                          \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add_at                                \
               ", 0;\n"                                                                        \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" names "}, %" #a_at \
               ", %" #b_at ", add, 1, 1, %" #a_lines ", %" #b_lines ";\n}\n"                   \
               : __VA_ARGS__                                                                   \
               : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(A == Lines::kRows),           \
                 "n"(B == Lines::kRows))
  if constexpr (kN == 256)
    MR_WGMMA(256,
             MR_NAMES_64
             ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
             "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, "
             "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "
             "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "
             "%125, %126, %127",
             128, 129, 130, 131, 132, MR_F64(0), MR_F64(64));
  else if constexpr (kN == 192)
    MR_WGMMA(192,
             MR_NAMES_64
             ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
             "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95",
             96, 97, 98, 99, 100, MR_F64(0), MR_F16(64), MR_F16(80));
  else if constexpr (kN == 128)
    MR_WGMMA(128, MR_NAMES_64, 64, 65, 66, 67, 68, MR_F64(0));
  else if constexpr (kN == 64)
    MR_WGMMA(64, MR_NAMES_32, 32, 33, 34, 35, 36, MR_F16(0), MR_F16(16));
  else if constexpr (kN == 32)
    MR_WGMMA(32, "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15", 16, 17, 18,
             19, 20, MR_F16(0));
  else if constexpr (kN == 16)
    MR_WGMMA(16, "%0, %1, %2, %3, %4, %5, %6, %7", 8, 9, 10, 11, 12, MR_F4(0), MR_F4(4));
  else if constexpr (kN == 8)
    MR_WGMMA(8, "%0, %1, %2, %3", 4, 5, 6, 7, 8, MR_F4(0));
  else
    static_assert(kN == 0, "no such width");
#undef MR_WGMMA
}

// The same with a in registers, as mma.cuh has it: warp w's lanes have rows 16 w to 16 w + 15. They
// may be written again once the product is complete.
template <int kN, Lines B>
__device__ __forceinline__ void MultiplyRegisters(float (&s)[kN / 2], const uint32_t (&a)[4],
                                                  uint64_t b, bool add) {
#define MR_WGMMA(n, names, a0, a1, a2, a3, b_at, add_at, b_lines, ...)                           \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add_at                                  \
               ", 0;\n"                                                                          \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" names "}, {%" #a0    \
               ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", add, 1, 1, %" #b_lines ";\n}\n"     \
               : __VA_ARGS__                                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)), \
                 "n"(B == Lines::kRows))
  if constexpr (kN == 128)
    MR_WGMMA(128, MR_NAMES_64, 64, 65, 66, 67, 68, 69, 70, MR_F64(0));
  else if constexpr (kN == 64)
    MR_WGMMA(64, MR_NAMES_32, 32, 33, 34, 35, 36, 37, 38, MR_F16(0), MR_F16(16));
  else
    static_assert(kN == 0, "no such width");
#undef MR_WGMMA
}
#undef MR_NAMES_64
#undef MR_NAMES_32
#undef MR_F64
#undef MR_F16
#undef MR_F4

}  // namespace millrace::cuda
