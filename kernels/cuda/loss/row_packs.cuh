// Rows of logits as packs that a block reads early, keeps in shared memory and writes back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/loss/cross_entropy_launch.h"
#include "kernels/cuda/pack.cuh"

namespace millrace::cuda {

// The packs of the rows that a block takes. The first of a row are read from shared memory,
// where a thread finds only what it fetched. With kWide a fetch is a copy in the background;
// Commit ends a stretch of them.
template <Elements E, bool kWide>
struct RowPacks {
  static constexpr int kRawBytes = sizeof(Raw<E>), kBytes = kRawBytes / kPack;

  Rows logits;
  int padded, cached;
  uint32_t cache;  // address in shared memory

  __device__ RowPacks(const CrossEntropyArgs& a, const void* shared, int cached)
      : logits(a.logits),
        padded(a.padded),
        cached(cached),
        cache(static_cast<uint32_t>(__cvta_generic_to_shared(shared))) {
    asm volatile("" : "+r"(cache));  // kept, not computed anew
  }
  __device__ __forceinline__ std::byte* Row(int64_t row) const {
    std::byte* begin = logits.data + row * logits.stride * kBytes;
    asm volatile("" : "+l"(begin));  // as above
    return begin;
  }
  __device__ __forceinline__ void Fetch(const std::byte* row, int p) const {
    if (p >= cached) return;
    const uint32_t to = cache + static_cast<uint32_t>(p) * kRawBytes;
    if constexpr (kWide) {
      const std::byte* from = row + int64_t{p} * kRawBytes;
#pragma unroll
      for (int piece = 0; piece < kRawBytes; piece += 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + piece),
                     "l"(from + piece)
                     : "memory");
    } else {
      const Raw<E> raw = FromMemory(row, p);
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(raw.low.x),
                   "r"(raw.low.y), "r"(raw.low.z), "r"(raw.low.w)
                   : "memory");
      if constexpr (E == Elements::kF32)
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + 16), "r"(raw.high.x),
                     "r"(raw.high.y), "r"(raw.high.z), "r"(raw.high.w)
                     : "memory");
    }
  }
  // n packs, `step` apart, of the row that comes next; nullptr: there is none.
  template <int n>
  __device__ __forceinline__ void Fetch(const std::byte* row, int first, int step) const {
    if (row == nullptr) return;
#pragma unroll
    for (int u = 0; u < n; ++u) Fetch(row, first + u * step);
  }
  __device__ __forceinline__ static void Commit() {
    if constexpr (kWide) asm volatile("cp.async.commit_group;" ::: "memory");
  }
  // Waits until at most the latest `pending` stretches are on their way, or three.
  __device__ __forceinline__ static void Await(int pending) {
    if constexpr (!kWide) return;
    if (pending <= 0)
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    else if (pending == 1)
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    else if (pending == 2)
      asm volatile("cp.async.wait_group 2;" ::: "memory");
    else
      asm volatile("cp.async.wait_group 3;" ::: "memory");
  }
  __device__ __forceinline__ Raw<E> Read(const std::byte* row, int p) const {
    if (p >= cached) return FromMemory(row, p);
    const uint32_t from = cache + static_cast<uint32_t>(p) * kRawBytes;
    Raw<E> raw;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.low.x), "=r"(raw.low.y), "=r"(raw.low.z), "=r"(raw.low.w)
                 : "r"(from)
                 : "memory");
    if constexpr (E == Elements::kF32)
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(raw.high.x), "=r"(raw.high.y), "=r"(raw.high.z), "=r"(raw.high.w)
                   : "r"(from + 16)
                   : "memory");
    return raw;
  }
  __device__ __forceinline__ void Write(std::byte* row, int p, const Floats& x) const {
    if constexpr (kWide) {  // on its way out: nothing reads it before the whole chunk is written
      const Raw<E> raw = FromFloats<E>(logits, x);
      uint4* to = reinterpret_cast<uint4*>(row + int64_t{p} * kRawBytes);
      __stcs(to, raw.low);
      if constexpr (E == Elements::kF32) __stcs(to + 1, raw.high);
    } else {
      Store<E>(At(row), int64_t{p} * kPack, padded - p * kPack, x);
    }
  }
  // One element as it lies in memory, and its value: apart, so that the load is
  // awaited where the value is used.
  __device__ __forceinline__ uint32_t Bits(const std::byte* row, int column) const {
    if constexpr (kIsShort<E>) return reinterpret_cast<const uint16_t*>(row)[column];
    return reinterpret_cast<const uint32_t*>(row)[column];
  }
  __device__ __forceinline__ static float Value(uint32_t bits) {
    asm volatile("" : "+r"(bits));
    if constexpr (kIsShort<E>) return LowOf<E>(bits);
    return __uint_as_float(bits);
  }
  __device__ __forceinline__ void WriteOne(std::byte* row, int column, float value) const {
    Store<E>(At(row), column, 1, Floats{{value}});
  }

 private:
  __device__ __forceinline__ Rows At(const std::byte* row) const {
    Rows at = logits;
    at.data = const_cast<std::byte*>(row);
    return at;
  }
  __device__ __forceinline__ Raw<E> FromMemory(const std::byte* row, int p) const {
    if constexpr (!kWide) return LoadRaw<E>(At(row), int64_t{p} * kPack, padded - p * kPack);
    const uint4* from = reinterpret_cast<const uint4*>(row + int64_t{p} * kRawBytes);
    Raw<E> raw;
    raw.low = *from;
    if constexpr (E == Elements::kF32) raw.high = from[1];
    return raw;
  }
};

}  // namespace millrace::cuda
