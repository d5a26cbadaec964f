// Attention of long prompts over cached keys on the GPU beside the CPU: more queries than there are
// in the contract's cases, as many as fill all multiprocessors with large tiles. And steps of one
// row, which read what is cached before the kernel ahead has ended.
#include <algorithm>
#include <numeric>
#include <random>

#include "runtime/base/cuda/launch.h"
#include "tests/kernels/cuda/both.h"
#include "tests/kernels/cuda/matmul_operands.h"
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
  // Where heads share keys in shared memory, weights are rounded, too (cache_launch.h).
  const bool shares = p.heads / p.kv_heads >= 4 && p.window == 0;
  CheckClose(one_by_one.out, on_cpu.out, "row by row",
             [&](const Index&) { return f32 + (shares ? 0x1p-9 : 0); });
  CHECK(SameBits(op.cache, on_cpu.cache));
  CHECK(SameBits(one_by_one.cache, on_cpu.cache));
}

struct Sizes {
  int64_t heads, kv_heads, depth, page_tokens, window;

  int64_t width() const { return 2 * kv_heads * depth; }
};

// A row of each of some sequences, of which so many positions are cached; what is not is NaN.
CachedAttentionOp<TensorView> RowsOf(Memory& memory, Random& random, const Sizes& s,
                                     const std::vector<int64_t>& cached) {
  const int64_t rows = std::ssize(cached),
                each = *std::max_element(cached.begin(), cached.end()) / s.page_tokens + 1;
  CachedAttentionOp<TensorView> op{};
  op.scale = 0.5f;
  op.window = s.window;
  op.kv_heads = s.kv_heads;
  op.length = each * s.page_tokens;
  op.q = memory.NewRandom(random, DType::kBF16, {rows, s.heads, s.depth});
  op.x = memory.NewRandom(random, DType::kBF16, {rows, s.width()});
  op.at = memory.New(DType::kI32, {rows});
  op.slots = memory.New(DType::kI32, {rows});
  op.pages = memory.New(DType::kI32, {rows, each});
  op.cache = memory.New(DType::kBF16, {rows * each, s.page_tokens, s.width()});
  op.out = memory.New(DType::kBF16, {rows, s.heads, s.depth});
  int32_t* const pages = op.pages.as<int32_t>();
  std::iota(pages, pages + rows * each, 0);
  std::shuffle(pages, pages + rows * each, random);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t count = cached[static_cast<size_t>(r)];
    op.at.as<int32_t>()[r] = static_cast<int32_t>(count);
    op.slots.as<int32_t>()[r] = static_cast<int32_t>(r);
    const TensorView kept = memory.NewRandom(random, DType::kBF16, {count + 1, s.width()});
    for (int64_t t = 0; t < count; ++t)
      for (int64_t c = 0; c < s.width(); ++c)
        Set(op.cache, {pages[r * each + t / s.page_tokens], t % s.page_tokens, c}, Get(kept, t, c));
  }
  return op;
}

// Of a single row more is on its way at once, and sums are the same.
TEST_CASE("attention of one row is the CPU's, and has the bits that it has beside another row") {
  const Sizes s =
      GENERATE(Sizes{12, 12, 64, 32, 0}, Sizes{16, 8, 64, 16, 0}, Sizes{32, 8, 64, 32, 0},
               Sizes{32, 8, 128, 24, 0}, Sizes{8, 8, 128, 16, 300}, Sizes{32, 8, 64, 16, 77});
  const int64_t cached = GENERATE(0, 1, 127, 700, 1024, 2310);
  CAPTURE(s.heads, s.kv_heads, s.depth, s.window, cached);
  Random random(93);
  Memory memory;
  const CachedAttentionOp<TensorView> two = RowsOf(memory, random, s, {cached, 333});
  CachedAttentionOp<TensorView> one = CopyOf(memory, two);
  const auto first = [](TensorView& view) { view.layout.dims[0] = 1; };
  first(one.q), first(one.x), first(one.at), first(one.slots), first(one.out);
  CachedAttentionOp<TensorView> on_cpu = CopyOf(memory, one);
  Both both;
  both.OnCpu(&KernelTable::cached_attention, on_cpu);
  both.OnGpu(&KernelTable::cached_attention, one);
  both.OnGpu(&KernelTable::cached_attention, two);
  const double f32 = static_cast<double>(one.length + 8) * 4 * kU;
  CheckClose(one.out, on_cpu.out, "one row", [&](const Index&) { return f32; });
  CHECK(SameBits(one.cache, on_cpu.cache));
  TensorView of_two = two.out;
  first(of_two);
  CHECK(SameBits(one.out, of_two));
}

// As a step that decodes many sequences: a row of each, of which some have a few positions cached
// and others many. Below and above the number from which on heads share keys in shared memory.
TEST_CASE("attention of rows of many sequences is the CPU's") {
  const Sizes s = GENERATE(Sizes{32, 8, 64, 16, 0}, Sizes{32, 8, 128, 32, 0},
                           Sizes{40, 2, 64, 24, 0}, Sizes{12, 12, 64, 16, 0});
  const int64_t rows = GENERATE(5, 32, 33, 140);
  CAPTURE(s.heads, s.kv_heads, s.depth, rows);
  Random random(95);
  Memory memory;
  std::vector<int64_t> cached;
  for (int64_t r = 0; r < rows; ++r) cached.push_back(r % 7 == 0 ? r : r * 37 % 300);
  const CachedAttentionOp<TensorView> op = RowsOf(memory, random, s, cached);
  CachedAttentionOp<TensorView> on_cpu = CopyOf(memory, op);
  Both both;
  both.OnCpu(&KernelTable::cached_attention, on_cpu);
  both.OnGpu(&KernelTable::cached_attention, op);
  const bool shares = s.heads / s.kv_heads >= 4 && rows * s.kv_heads >= 264;
  const double f32 = static_cast<double>(op.length + 8) * 4 * kU;
  CheckClose(op.out, on_cpu.out, "rows", [&](const Index&) { return f32 + (shares ? 0x1p-9 : 0); });
  CHECK(SameBits(op.cache, on_cpu.cache));
}

// A step's graph: a kernel that takes its time and writes the queries and the row to cache last,
// then the attention. Each step reads what the one before has cached.
TEST_CASE("steps of one row that begin early leave what they do one after the other") {
  const Sizes s = GENERATE(Sizes{12, 12, 64, 32, 0}, Sizes{32, 8, 64, 16, 0},
                           Sizes{32, 8, 128, 32, 0}, Sizes{16, 8, 64, 16, 90});
  constexpr int64_t kBegin = 990, kSteps = 60, kAhead = int64_t{6} << 20;
  CAPTURE(s.heads, s.kv_heads, s.depth, s.window);
  CudaDevice device(0);
  const auto stream = device.MakeStream(StreamRole::kCompute);
  DeviceOperands operands(device, *stream);
  Random random(94);
  Memory memory;
  const CachedAttentionOp<TensorView> host = RowsOf(memory, random, s, {kBegin + kSteps});
  const int64_t of_q = s.heads * s.depth, all = kAhead + of_q + s.width();
  const TensorView wide = operands.Random(DenseLayout(DType::kF32, {all}));
  // By turns: early, and one after the other.
  struct Side {
    TensorView narrow;
    CachedAttentionOp<TensorView> op;
    std::unique_ptr<Graph> graph;
  };
  std::vector<Side> sides(2);
  for (size_t i = 0; i < 2; ++i) {
    Side& side = sides[i];
    side.narrow = operands.New(DenseLayout(DType::kBF16, {all}));
    side.op = host;
    for (TensorView CachedAttentionOp<TensorView>::*operand :
         {&CachedAttentionOp<TensorView>::at, &CachedAttentionOp<TensorView>::slots,
          &CachedAttentionOp<TensorView>::pages, &CachedAttentionOp<TensorView>::cache,
          &CachedAttentionOp<TensorView>::out}) {
      const TensorView& from = host.*operand;
      side.op.*operand = operands.New(from.layout);
      device.CopyFromHost((side.op.*operand).data, from.data, from.bytes(), *stream);
    }
    side.op.q = {side.narrow.data + 2 * kAhead, host.q.layout};
    side.op.x = {side.narrow.data + 2 * (kAhead + of_q), host.x.layout};
    device.Attached<cuda::LaunchPolicy>().early = i == 0 ? EarlyLaunch::kEnd : EarlyLaunch::kOff;
    device.BeginCapture(*stream);
    CudaKernels().cast({{}, wide, side.narrow}, *stream);
    CudaKernels().cached_attention(side.op, *stream);
    side.graph = device.EndCapture(*stream);
  }
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> row(static_cast<size_t>(of_q + s.width()));
  for (int64_t step = 0; step < kSteps; ++step) {
    for (float& value : row) value = uniform(random);
    device.CopyFromHost(wide.data + 4 * kAhead, row.data(), 4 * std::ssize(row), *stream);
    const auto at = static_cast<int32_t>(kBegin + step);
    std::vector<std::vector<uint16_t>> out;
    for (Side& side : sides) {
      device.CopyFromHost(side.op.at.data, &at, 4, *stream);
      side.graph->Launch(*stream);
      std::vector<uint16_t>& values = out.emplace_back(static_cast<size_t>(of_q));
      device.CopyToHost(values.data(), side.op.out.data, 2 * of_q, *stream);
    }
    INFO("position " << at);
    REQUIRE(out[0] == out[1]);
  }
  CHECK(SameBits(operands.OnHost(sides[0].op.cache), operands.OnHost(sides[1].op.cache)));
}

}  // namespace
}  // namespace millrace::test
