// The border between grouped_matmul.cc and its kernels.
//
// Both ops are a product out(m,n) = sum over k of a(m,k) b(k,n) for each expert, of which slots are
// either the rows m or the depth k.
#pragma once

#include "kernels/cuda/rows.h"
#include "runtime/base/cuda/launch.h"

namespace millrace::cuda {

enum class Slots { kRows, kDepth };

// An operand by the strides of its dims in elements; dim `mn` is m of a, n of b. Expert e's begins
// `expert` elements after the one before; slots of an expert are rows of the whole, and `expert` is
// 0.
struct GroupedOperand {
  const std::byte* data = nullptr;
  int64_t mn = 0, k = 0, expert = 0;
};

struct GroupedArgs {
  GroupedOperand a, b;
  std::byte* out = nullptr;  // rows of `out_row` elements, neighbours in a row
  int64_t out_row = 0, out_expert = 0;
  const int32_t* offsets = nullptr;  // [experts + 1]; wgmma: or absent, of one expert of m slots
  int experts = 0;
  // The dims that are not slots; that of slots is not looked at where there are offsets.
  int m = 0, n = 0, k = 0;
  // wgmma without offsets: bf16 [n], added in f32 ahead of the rounding; may be absent.
  const std::byte* bias = nullptr;
  bool out_bf16 = false, accumulate = false;
};

// Tensor cores: operands are bf16, of each operand one stride is 1 and all else is a multiple of
// eight elements, addresses too (mma.sync).
void LaunchGroupedTensor(const GroupedArgs& args, Slots slots, const Launch& launch);
// Any operands, both f32 or both bf16.
void LaunchGroupedPlain(const GroupedArgs& args, Slots slots, bool bf16, const Launch& launch);

// The same operands on tensor cores of sm_90a (wgmma), rows of a not across where slots are rows.
// Across: whether columns of b are neighbours. slots: how many a has, live or not; no dim is 0.
// ticket: two words that are zero, and will be (tickets.h).
template <Slots S, bool kAcross>
void LaunchGroupedWgmma(const GroupedArgs& args, int64_t slots, unsigned* ticket,
                        const Launch& launch);
// Whether this program has them.
bool HasGroupedWgmma();

}  // namespace millrace::cuda
