// Which of its weights a chain of linears (row_chain.h) has fetched into the second cache: runs of
// lines in each block's share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#ifdef __CUDACC__
#define MILLRACE_BOTH_SIDES __host__ __device__
#else
#define MILLRACE_BOTH_SIDES
#endif

namespace millrace::cuda {

MILLRACE_BOTH_SIDES inline int Least(int a, int b) {
#ifdef __CUDA_ARCH__
  return min(a, b);  // one instruction
#else
  return b < a ? b : a;
#endif
}

// Of a linear: blocks have its units in order, the first units % blocks of them one more. A unit is
// a line, or two.
struct ChainWeights {
  const std::byte* data = nullptr;
  int units = 0, line_bytes = 0;
  int64_t gap_bytes = 0;   // from the first line of a unit to its second; 0: it has one
  bool scattered = false;  // lines of neighbouring units do not follow each other: none is fetched
};

// Of those that each block has a share of, `count` lines from the share's `first` on.
struct ChainLines {
  const std::byte* data = nullptr;
  int each = 0, more = 0;  // lines of a share; the first `more` have one more
  int first = 0, count = 0, line_bytes = 0;

  // Of this block: how many, 0 or less where its share ends ahead of `first`, and from which byte
  // of `data` on.
  MILLRACE_BOTH_SIDES int CountOf(int block) const {
    const int left = each + (block < more ? 1 : 0) - first;
    return Least(count, left);
  }
  MILLRACE_BOTH_SIDES int64_t BeginOf(int block) const {
    return int64_t{block * each + Least(block, more) + first} * line_bytes;
  }
};

// What begins `skipped` bytes behind the beginning of a block's weights, in the order in which it
// multiplies them, whole units of `bytes` at most. Writes `to` as far as it goes; returns how many.
int LinesOf(std::span<const ChainWeights> weights, int64_t skipped, int64_t bytes, int blocks,
            std::span<ChainLines> to);

}  // namespace millrace::cuda
