// The memory-bound ops at the sizes of models, CUDA against CPU. Where both do the same operations
// in the same order, results are compared as bits; else the bound is derived beside the check.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/ops/cuda_blocking.h"
#include "tests/kernels/cuda/both.h"
#include "tests/kernels/support/near.h"
#include "tests/kernels/support/subject.h"

namespace millrace::test {
namespace {

struct NormCase {
  NormKind kind;
  DType dtype;
  int64_t rows, columns;
};

// GPT-2 124M and 1558M, Llama 1B, 3B's width (the most shared memory) and 8B; a row of 16 warps; an
// odd one; small ones.
constexpr NormCase kNorms[] = {
    {NormKind::kLayer, DType::kBF16, 4096, 768}, {NormKind::kLayer, DType::kBF16, 999, 1600},
    {NormKind::kRms, DType::kBF16, 1000, 2048},  {NormKind::kLayer, DType::kBF16, 500, 3072},
    {NormKind::kRms, DType::kBF16, 531, 4096},   {NormKind::kLayer, DType::kF32, 2500, 768},
    {NormKind::kRms, DType::kF32, 40, 12288},    {NormKind::kLayer, DType::kBF16, 300, 1023},
    {NormKind::kLayer, DType::kF32, 5, 16384},   {NormKind::kLayer, DType::kBF16, 1000, 384},
    {NormKind::kRms, DType::kBF16, 2200, 200}};

TEST_CASE("norm") {
  Both both;
  Random random(1);
  for (const NormCase& c : kNorms) {
    Memory memory;
    NormOp<TensorView> op{};
    op.kind = c.kind;
    op.x = op.sum = memory.NewRandom(random, c.dtype, {c.rows, c.columns}, Strides::kDense, 3);
    op.residual = memory.NewRandom(random, c.dtype, {c.rows, c.columns});
    op.weight = memory.NewRandom(random, DType::kF32, {c.columns});
    if (c.kind == NormKind::kLayer) {
      op.bias = memory.NewRandom(random, DType::kF32, {c.columns});
      op.mean = memory.New(DType::kF32, {c.rows});
    }
    op.rstd = memory.New(DType::kF32, {c.rows});
    op.out = memory.New(c.dtype, {c.rows, c.columns});
    const NormOp<TensorView> cpu = CopyOf(memory, op);
    both.OnCpu(&KernelTable::norm, cpu);
    both.OnGpu(&KernelTable::norm, op);
    CHECK(SameBits(op.sum, cpu.sum));
    // Statistics are sums in double: at most the last bit of their rounding differs.
    const auto none = [](const Index&) { return 0.0; };
    if (op.mean) CheckClose(op.mean, cpu.mean, "mean", none);
    CheckClose(op.rstd, cpu.rstd, "rstd", none);
    // |x - mean| * rstd * |weight| <= 10 here, and a unit of it in mean and in rstd.
    CheckClose(op.out, cpu.out, "norm", [](const Index&) { return 10 * 4 * kU; });
  }
}

// Few rows have a kernel of their own, with the weights on their way before the sums.
TEST_CASE("a row's norm has the same bits among few rows and among many") {
  Both both;
  Random random(13);
  for (const NormCase& c : kNorms) {
    constexpr int64_t kFew = 24;
    if (c.rows <= kFew) continue;
    Memory memory;
    NormOp<TensorView> many{};
    many.kind = c.kind;
    many.x = memory.NewRandom(random, c.dtype, {c.rows, c.columns}, Strides::kDense, 3);
    many.weight = memory.NewRandom(random, c.dtype, {c.columns});
    if (c.kind == NormKind::kLayer) {
      many.bias = memory.NewRandom(random, DType::kF32, {c.columns});
      many.mean = memory.New(DType::kF32, {c.rows});
    }
    if (c.rows % 2 == 0) {
      many.residual = memory.NewRandom(random, c.dtype, {c.rows, c.columns});
      many.sum = memory.New(c.dtype, {c.rows, c.columns});
    }
    many.rstd = memory.New(DType::kF32, {c.rows});
    many.out = memory.New(c.dtype, {c.rows, c.columns});
    const auto first = [&](TensorView view) {
      if (view && view.layout.dims[0] == c.rows) view.layout.dims[0] = kFew;
      return view;
    };
    const NormOp<TensorView> few =
        ConvertOp<NormOp, TensorView, TensorView>(CopyOf(memory, many), first);
    both.OnGpu(&KernelTable::norm, many);
    both.OnGpu(&KernelTable::norm, few);
    INFO(ToString(many.x.layout));
    CHECK(SameBits(few.out, first(many.out)));
    CHECK(SameBits(few.rstd, first(many.rstd)));
    if (few.mean) CHECK(SameBits(few.mean, first(many.mean)));
    if (few.sum) CHECK(SameBits(few.sum, first(many.sum)));
  }
}

TEST_CASE("norm_grad") {
  Both both;
  Random random(2);
  for (const NormCase& c : kNorms) {
    if (c.columns > 12288) continue;
    Memory memory;
    NormGradOp<TensorView> op{};
    op.kind = c.kind;
    op.d_out = memory.NewRandom(random, c.dtype, {c.rows, c.columns});
    op.x = memory.NewRandom(random, c.dtype, {c.rows, c.columns}, Strides::kDense, 2);
    op.weight = memory.NewRandom(random, DType::kF32, {c.columns});
    op.rstd = memory.NewRandom(random, DType::kF32, {c.rows});
    NormSumsOp<TensorView> sums{};
    if (c.kind == NormKind::kLayer) {
      op.mean = memory.NewRandom(random, DType::kF32, {c.rows}, Strides::kDense, 0.3);
      sums.d_bias = memory.NewRandom(random, DType::kF32, {c.columns});
      sums.bias_update = Update::kAccumulate;
    }
    op.d_bypass = op.d_x = memory.NewRandom(random, c.dtype, {c.rows, c.columns});
    sums.d_weight = memory.NewRandom(random, DType::kF32, {c.columns});
    const int64_t sums_of_block = sums.d_bias ? 2 : 1;
    NormGradOp<TensorView> cpu = CopyOf(memory, op);
    NormSumsOp<TensorView> cpu_sums = CopyOf(memory, sums);
    cpu.partials = cpu_sums.partials = NewPartials(memory, cpu, sums_of_block, Backend::kCpu);
    op.partials = sums.partials = NewPartials(memory, op, sums_of_block, Backend::kCuda);
    both.OnCpu(&KernelTable::norm_grad, cpu);
    both.OnGpu(&KernelTable::norm_grad, op);
    both.OnCpu(&KernelTable::norm_sums, cpu_sums);
    both.OnGpu(&KernelTable::norm_sums, sums);
    // The means over a row agree to the last bit of f32; the factors here are at most 2.3.
    CheckClose(op.d_x, cpu.d_x, "d_x", [](const Index&) { return 16 * kU; });
    // A thread adds rows / 264 terms, each at most 2.3, in f32: a relative error of their number.
    const double rows = static_cast<double>(c.rows), in_f32 = rows / 264 + 2;
    const auto of_rows = [&](const Index&) { return in_f32 * kU * rows * 2.3; };
    CheckClose(sums.d_weight, cpu_sums.d_weight, "d_weight", of_rows);
    if (sums.d_bias) CheckClose(sums.d_bias, cpu_sums.d_bias, "d_bias", of_rows);
  }
}

struct ColumnSumCase {
  DType dtype;
  int64_t rows, columns;
};

// One launch, up to its most rows; two, with 88 chunks, with the most chunks,
// and one element at a time.
constexpr ColumnSumCase kColumnSums[] = {{DType::kBF16, 1024, 384},  {DType::kF32, 4096, 136},
                                         {DType::kBF16, 999, 1023},  {DType::kBF16, 8192, 1536},
                                         {DType::kF32, 20000, 100},  {DType::kBF16, 4097, 777},
                                         {DType::kBF16, 30000, 256}, {DType::kF32, 5001, 2304}};

TEST_CASE("column_sum") {
  Both both;
  Random random(12);
  for (const ColumnSumCase& c : kColumnSums) {
    Memory memory;
    ColumnSumOp<TensorView> op{};
    op.update = Update::kAccumulate;
    op.x = memory.NewRandom(random, c.dtype, {c.rows, c.columns});
    op.out = memory.New(DType::kF32, {c.columns});
    // Multiples of 1/16 up to 1: no sum of them is rounded, whatever its order.
    ForEach(op.x.layout, [&](const Index& i) { Set(op.x, i, std::round(16 * Get(op.x, i)) / 16); });
    ForEach(op.out.layout,
            [&](const Index& i) { Set(op.out, i, 3.0 * static_cast<double>(i[0])); });
    const ColumnSumOp<TensorView> cpu = CopyOf(memory, op);
    both.OnCpu(&KernelTable::column_sum, cpu);
    both.OnGpu(&KernelTable::column_sum, op);
    INFO(ToString(op.x.layout));
    CHECK(SameBits(op.out, cpu.out));
  }
}

struct EmbedCase {
  int64_t batch, length, vocab, columns;
  int skew;  // share of the most frequent token in percent; the table's last row gets as much
};

// Sorts of one, two and three digits, ranked and by digits; small tiles and large ones; a
// token that fills nearly every tile; one block of columns and two.
constexpr EmbedCase kEmbeds[] = {{8, 640, 50304, 72, 20},  {3, 1001, 256, 768, 0},
                                 {2, 2500, 300000, 8, 30}, {4, 1500, 513, 96, 49},
                                 {2, 300, 1000, 2304, 5},  {1, 4096, 2, 40, 10},
                                 {9, 1111, 700, 40, 45}};

TEST_CASE("embed and embed_grad") {
  Both both;
  Random random(3);
  for (const EmbedCase& c : kEmbeds) {
    Memory memory;
    const TensorView tokens = memory.NewTokens(random, {c.batch, c.length}, 0, c.vocab);
    std::vector<double> count(static_cast<size_t>(c.vocab));
    ForEach(tokens.layout, [&](const Index& i) {
      const int64_t dice = Pick(random, 0, 99);
      if (dice < c.skew) Set(tokens, i, 1);
      if (dice >= 100 - c.skew) Set(tokens, i, static_cast<double>(c.vocab - 1));
      count[static_cast<size_t>(Get(tokens, i))] += 1;
    });
    const int64_t rows = c.batch * c.length;
    const TensorView scalars = memory.NewScalars(Scalars());

    EmbedOp<TensorView> embed{};
    embed.tokens = tokens, embed.scalars = scalars;
    embed.table = memory.NewRandom(random, DType::kBF16, {c.vocab, c.columns});
    embed.positions = memory.NewRandom(random, DType::kBF16, {c.length, c.columns});
    embed.out = memory.New(DType::kBF16, {rows, c.columns});
    const EmbedOp<TensorView> embed_cpu = CopyOf(memory, embed);
    both.OnCpu(&KernelTable::embed, embed_cpu);
    both.OnGpu(&KernelTable::embed, embed);
    CHECK(SameBits(embed.out, embed_cpu.out));

    for (const Update update : {Update::kOverwrite, Update::kAccumulate}) {
      EmbedGradOp<TensorView> op{};
      op.tokens = tokens, op.scalars = scalars;
      op.d_out = memory.NewRandom(random, DType::kBF16, {rows, c.columns});
      op.d_table = memory.NewRandom(random, DType::kF32, {c.vocab, c.columns});
      op.d_positions = memory.NewRandom(random, DType::kF32, {c.length, c.columns});
      op.table_update = op.positions_update = update;
      const EmbedGradOp<TensorView> cpu = CopyOf(memory, op);
      both.OnCpu(&KernelTable::embed_grad, cpu);
      both.OnGpu(&KernelTable::embed_grad, op);
      CHECK(SameBits(op.d_positions, cpu.d_positions));
      // Two orders of the same sum of n terms, each at most 1: n * u * n each.
      CheckClose(op.d_table, cpu.d_table, "d_table", [&](const Index& i) {
        const double n = count[static_cast<size_t>(i[0])];
        return n < 2 ? 0 : 2 * n * kU * n;
      });
    }
  }
}

struct OrderCase {
  DType d_out, d_table;
  int64_t rows, vocab, columns;
  Update update;
};

// Ranked and sorted; tiles of 16 and 64; packs that are whole and not; two blocks of columns.
constexpr OrderCase kOrders[] = {{DType::kBF16, DType::kF32, 1, 50, 384, Update::kAccumulate},
                                 {DType::kF32, DType::kBF16, 31, 7, 2304, Update::kAccumulate},
                                 {DType::kBF16, DType::kBF16, 1000, 3000, 136, Update::kAccumulate},
                                 {DType::kBF16, DType::kF32, 1024, 3000, 384, Update::kAccumulate},
                                 {DType::kBF16, DType::kF32, 1024, 3000, 20, Update::kAccumulate},
                                 {DType::kF32, DType::kF32, 1024, 300, 48, Update::kOverwrite},
                                 {DType::kBF16, DType::kF32, 4096, 2000, 96, Update::kAccumulate},
                                 {DType::kBF16, DType::kF32, 4097, 2000, 96, Update::kAccumulate},
                                 {DType::kF32, DType::kBF16, 8192, 9000, 40, Update::kAccumulate},
                                 {DType::kBF16, DType::kF32, 8193, 2000, 40, Update::kAccumulate}};

// d_table after the op, by the order in embed_grad.h.
TensorView InOrder(Memory& memory, const EmbedGradOp<TensorView>& op) {
  const int64_t rows = op.d_out.dim(0), columns = op.d_out.dim(1), vocab = op.d_table.dim(0);
  const int64_t tile = cuda::EmbedGradScratch{rows, vocab, columns}.sum_tile();
  const TensorView result = memory.Clone(op.d_table);
  if (op.table_update == Update::kOverwrite)
    ForEach(result.layout, [&](const Index& i) { Set(result, i, 0); });
  const auto token = [&](int64_t row) {
    return static_cast<int64_t>(Get(op.tokens, row / op.tokens.dim(1), row % op.tokens.dim(1)));
  };
  std::vector<int64_t> order(static_cast<size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return token(a) < token(b); });
  const auto width = static_cast<size_t>(columns);
  std::vector<float> sum(width), stretch(width);
  const auto add = [&](std::vector<float>& to, auto&& value) {
    for (int64_t c = 0; c < columns; ++c) to[static_cast<size_t>(c)] += value(c);
  };
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t row = order[static_cast<size_t>(i)], v = token(row);
    add(stretch, [&](int64_t c) { return static_cast<float>(Get(op.d_out, row, c)); });
    const bool ends = i + 1 == rows || token(order[static_cast<size_t>(i + 1)]) != v;
    if (!ends && (i + 1) % tile != 0) continue;
    add(sum, [&](int64_t c) { return stretch[static_cast<size_t>(c)]; });
    stretch.assign(width, 0);
    if (!ends) continue;
    add(sum, [&](int64_t c) { return static_cast<float>(Get(result, v, c)); });
    for (int64_t c = 0; c < columns; ++c) Set(result, {v, c}, sum[static_cast<size_t>(c)]);
    sum.assign(width, 0);
  }
  return result;
}

TEST_CASE("embed_grad adds up a token's rows in their order, tile by tile") {
  Both both;
  Random random(14);
  for (const OrderCase& c : kOrders) {
    Memory memory;
    EmbedGradOp<TensorView> op{};
    op.tokens = memory.NewTokens(random, {1, c.rows}, 0, c.vocab);
    // A frequent one in the middle of the vocabulary, at either end of it, and between.
    ForEach(op.tokens.layout, [&](const Index& i) {
      const int64_t dice = Pick(random, 0, 9);
      if (dice < 4) Set(op.tokens, i, static_cast<double>((c.vocab - 1) * dice / 3));
    });
    op.scalars = memory.NewScalars(Scalars());
    op.d_out = memory.NewRandom(random, c.d_out, {c.rows, c.columns});
    op.d_table = memory.NewRandom(random, c.d_table, {c.vocab, c.columns});
    op.table_update = c.update;
    const TensorView expected = InOrder(memory, op);
    both.OnGpu(&KernelTable::embed_grad, op);
    INFO(ToString(op.d_out.layout) << " to " << ToString(op.d_table.layout));
    CHECK(SameBits(op.d_table, expected));
  }
}

struct LossCase {
  DType dtype;
  int64_t rows, vocab, padded;
};

// A row that stays on the chip, one of Llama 3 that does not, one of f32, a small one, one that no
// 16 bytes divide; more rows than blocks run at a time.
constexpr LossCase kLosses[] = {{DType::kBF16, 300, 50257, 50304},
                                {DType::kBF16, 140, 128256, 128256},
                                {DType::kF32, 140, 50257, 50304},
                                {DType::kBF16, 2500, 256, 256},
                                {DType::kBF16, 300, 32001, 32001}};

// Of row_loss: lane t of 1024 adds rows t, t + 1024, ..., a warp its lanes by halves, one thread
// the warps.
double LossInOrder(const TensorView& row_loss) {
  constexpr size_t kLanes = 1024, kWarp = 32;
  std::vector<double> lane(kLanes);
  for (int64_t r = 0; r < row_loss.numel(); ++r)
    lane[static_cast<size_t>(r) % kLanes] += row_loss.as<double>()[r];
  for (size_t half = kWarp / 2; half > 0; half /= 2)
    for (size_t t = 0; t < kLanes; ++t)
      if (t % kWarp < half) lane[t] += lane[t + half];
  double sum = lane[0];
  for (size_t w = 1; w < kLanes / kWarp; ++w) sum += lane[w * kWarp];
  return sum;
}

TEST_CASE("cross_entropy") {
  Both both;
  Random random(4);
  for (const LossCase& c : kLosses) {
    Memory memory;
    CrossEntropyOp<TensorView> op{};
    op.targets = memory.NewTokens(random, {1, c.rows}, -1, c.vocab);
    op.vocab = c.vocab;
    op.logits = memory.NewRandom(random, c.dtype, {c.rows, c.padded}, Strides::kDense, 5);
    op.loss_sum = memory.New(DType::kF64, {1});
    Set(op.loss_sum, {}, 12.5);
    op.loss_update = Update::kAccumulate;
    op.row_loss = memory.New(DType::kF64, {c.rows});
    op.scalars = memory.NewScalars(Scalars());
    const CrossEntropyOp<TensorView> cpu = CopyOf(memory, op);
    both.OnCpu(&KernelTable::cross_entropy, cpu);
    both.OnGpu(&KernelTable::cross_entropy, op);
    CHECK(Get(op.loss_sum) == 12.5 + LossInOrder(op.row_loss));
    // e^(x - max) with |x - max| <= 10 is within 4 + 15 units on either side, the sum within log2
    // of its length and a thread's 250 terms.
    const double relative = 2 * (19 + 270) * kU;
    CheckClose(op.loss_sum, cpu.loss_sum, "loss",
               [&](const Index&) { return relative * static_cast<double>(c.rows); });
    const double inverse = ScalarsOf(op.scalars).inv_valid_tokens;
    CheckClose(op.logits, cpu.logits, "gradient", [&](const Index& i) {
      const auto target = static_cast<int64_t>(Get(op.targets, 0, i[0]));
      return relative * (std::abs(Get(cpu.logits, i)) + (i[1] == target ? 2 * inverse : 0));
    });
  }
}

TEST_CASE("activations") {
  Both both;
  Random random(5);
  for (const ActivationKind kind :
       {ActivationKind::kGelu, ActivationKind::kSwiglu, ActivationKind::kRelu2}) {
    for (const int64_t columns : {3072, 1365}) {
      Memory memory;
      const int64_t wide = IsGated(kind) ? 2 * columns : columns;
      ActivationOp<TensorView> op{};
      op.kind = kind;
      op.x = memory.NewRandom(random, DType::kBF16, {700, wide}, Strides::kDense, 6);
      op.out = memory.New(DType::kBF16, {700, columns});
      const ActivationOp<TensorView> cpu = CopyOf(memory, op);
      both.OnCpu(&KernelTable::activation, cpu);
      both.OnGpu(&KernelTable::activation, op);
      // A relative error of (8 + 4 |z|) units on either side, |z| <= 25 where the result is not
      // tiny.
      CheckClose(op.out, cpu.out, "activation",
                 [&](const Index& i) { return 2 * 108 * kU * std::abs(Get(cpu.out, i)); });

      ActivationGradOp<TensorView> grad{};
      grad.kind = kind;
      grad.x = grad.d_x = op.x;
      grad.d_out = memory.NewRandom(random, DType::kBF16, {700, columns});
      const ActivationGradOp<TensorView> grad_cpu = CopyOf(memory, grad);
      both.OnCpu(&KernelTable::activation_grad, grad_cpu);
      both.OnGpu(&KernelTable::activation_grad, grad);
      // The terms of a derivative are at most 6 * 6 and may cancel.
      CheckClose(grad.d_x, grad_cpu.d_x, "activation gradient",
                 [&](const Index&) { return 2 * 108 * kU * 36; });
    }
  }
}

TEST_CASE("rope on slices of a fused row") {
  Both both;
  Random random(6);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const int64_t depth : {64, 128, 72}) {
      Memory memory;
      const int64_t batch = 3, length = 301, heads = 12;
      RopeTableOp<TensorView> table{};
      table.theta = 500000;
      table.scaling = {32, 1, 4, 128};
      table.table = memory.New(DType::kF32, {length, depth / 2, 2});
      const RopeTableOp<TensorView> table_cpu = CopyOf(memory, table);
      both.OnCpu(&KernelTable::rope_table, table_cpu);
      both.OnGpu(&KernelTable::rope_table, table);
      // Angles of up to 300 in double, cosines rounded once.
      CheckClose(table.table, table_cpu.table, "table",
                 [](const Index&) { return 8 * 0x1p-52 * 301; });

      RopeOp<TensorView> op{};
      op.x = memory.NewRandom(random, dtype, {batch, length, (heads + 4) * depth});
      const int64_t row = (heads + 4) * depth;
      const TensorView whole = op.x;
      op.x.layout = DenseLayout(dtype, {batch, length, heads, depth});
      op.x.layout.strides = {length * row, row, depth, 1};
      op.table = table_cpu.table;
      RopeOp<TensorView> cpu = op;
      cpu.x.data = memory.Clone(whole).data;
      both.OnCpu(&KernelTable::rope, cpu);
      both.OnGpu(&KernelTable::rope, op);
      CHECK(SameBits(op.x, cpu.x));
    }
  }
}

TEST_CASE("add, cast, concat and accumulate") {
  Both both;
  Random random(7);
  for (const int64_t n : {1 << 20, (1 << 20) + 13}) {
    for (const DType x : {DType::kBF16, DType::kF32}) {
      for (const DType out : {DType::kBF16, DType::kF32}) {
        Memory memory;
        AddOp<TensorView> add{};
        add.a = memory.NewRandom(random, x, {n});
        add.b = memory.NewRandom(random, x, {n});
        add.out = memory.New(out, {n});
        const AddOp<TensorView> add_cpu = CopyOf(memory, add);
        both.OnCpu(&KernelTable::add, add_cpu);
        both.OnGpu(&KernelTable::add, add);
        CHECK(SameBits(add.out, add_cpu.out));
        CastOp<TensorView> cast{{}, add.a, memory.New(out, {n})};
        const CastOp<TensorView> cast_cpu = CopyOf(memory, cast);
        both.OnCpu(&KernelTable::cast, cast_cpu);
        both.OnGpu(&KernelTable::cast, cast);
        CHECK(SameBits(cast.out, cast_cpu.out));
        ConcatOp<TensorView> concat{
            {Update::kAccumulate}, add.a, memory.NewRandom(random, out, {n})};
        const ConcatOp<TensorView> concat_cpu = CopyOf(memory, concat);
        both.OnCpu(&KernelTable::concat, concat_cpu);
        both.OnGpu(&KernelTable::concat, concat);
        CHECK(SameBits(concat.out, concat_cpu.out));
      }
    }
  }
}

}  // namespace
}  // namespace millrace::test
