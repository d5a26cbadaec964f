// Attention of long prompts over cached keys on the GPU beside the CPU: more queries than there are
// in the contract's cases, as many as fill all multiprocessors with large tiles.
#include <algorithm>
#include <numeric>

#include "tests/kernels/cuda/both.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

struct Prompt {
  int64_t rows, start, heads, kv_heads, depth, page_tokens, window;
};

// Rows [start, start + rows) of one sequence, whose earlier ones are cached; some of nobody come
// first, as in a plan that is larger than the prompt.
CachedAttentionOp<TensorView> OpOf(Memory& memory, Random& random, const Prompt& p) {
  constexpr int64_t kNobodys = 37;
  const int64_t all = p.start + p.rows, rows = kNobodys + p.rows,
                pages = (all + p.page_tokens - 1) / p.page_tokens;
  CachedAttentionOp<TensorView> op{};
  op.scale = 1;
  op.window = p.window;
  op.kv_heads = p.kv_heads;
  op.length = all;
  op.rows_from = RowsFrom::kOneSequence;
  op.q = memory.NewRandom(random, DType::kBF16, {rows, p.heads, p.depth});
  op.at = memory.New(DType::kI32, {rows});
  op.slots = memory.New(DType::kI32, {rows});
  for (int64_t r = 0; r < rows; ++r) {
    op.at.as<int32_t>()[r] = static_cast<int32_t>(r < kNobodys ? 0 : p.start + r - kNobodys);
    op.slots.as<int32_t>()[r] = r < kNobodys ? -1 : 0;
  }
  op.pages = memory.New(DType::kI32, {1, pages});
  int32_t* const order = op.pages.as<int32_t>();
  std::iota(order, order + pages, 0);
  std::shuffle(order, order + pages, random);
  // What is not cached yet is NaN.
  const int64_t width = 2 * p.kv_heads * p.depth;
  op.cache = memory.New(DType::kBF16, {pages, p.page_tokens, width});
  op.x = memory.NewRandom(random, DType::kBF16, {rows, width});
  const TensorView kept = memory.NewRandom(random, DType::kBF16, {p.start, width});
  for (int64_t t = 0; t < p.start; ++t)
    for (int64_t c = 0; c < width; ++c)
      Set(op.cache, {order[t / p.page_tokens], t % p.page_tokens, c}, Get(kept, t, c));
  op.out = memory.New(DType::kBF16, {rows, p.heads, p.depth});
  return op;
}

TEST_CASE("attention of a long prompt over pages is the CPU's") {
  const Prompt p =
      GENERATE(Prompt{1900, 333, 32, 8, 64, 16, 0}, Prompt{1111, 70, 32, 4, 128, 24, 0},
               Prompt{2900, 0, 12, 12, 64, 128, 0}, Prompt{1500, 129, 24, 3, 64, 1, 200},
               Prompt{300, 1700, 16, 16, 128, 64, 0}, Prompt{17, 2000, 32, 8, 64, 16, 0});
  CAPTURE(p.rows, p.start, p.heads, p.kv_heads, p.depth, p.page_tokens, p.window);
  Random random(92);
  Memory memory;
  const CachedAttentionOp<TensorView> op = OpOf(memory, random, p);
  CachedAttentionOp<TensorView> on_cpu = CopyOf(memory, op), one_by_one = CopyOf(memory, op);
  one_by_one.rows_from = RowsFrom::kManySequences;
  Both both;
  both.OnCpu(&KernelTable::cached_attention, on_cpu);
  both.OnGpu(&KernelTable::cached_attention, op);
  both.OnGpu(&KernelTable::cached_attention, one_by_one);
  // Weights add up to 1 and values are at most 1: what a rounding of either to bf16 does, and f32's
  // sums of as many.
  const double f32 = static_cast<double>(op.length + 8) * 4 * kU;
  CheckClose(op.out, on_cpu.out, "of one sequence", [&](const Index&) { return 0x1p-9 + f32; });
  CheckClose(one_by_one.out, on_cpu.out, "row by row", [&](const Index&) { return f32; });
  CHECK(SameBits(op.cache, on_cpu.cache));
  CHECK(SameBits(one_by_one.cache, on_cpu.cache));
}

}  // namespace
}  // namespace millrace::test
