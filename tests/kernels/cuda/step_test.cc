// What ends a step, at the sizes of models: updates and statistics, CUDA against CPU. As
// rows_test.cc.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "tests/kernels/cuda/both.h"
#include "tests/kernels/support/near.h"
#include "tests/kernels/support/subject.h"

namespace millrace::test {
namespace {

// Many short ranges, neighbours among them, so that a launch ends in the middle
// of a pack that three share.
std::shared_ptr<std::vector<Range>> ManyRanges(Random& random, int64_t n) {
  auto ranges = std::make_shared<std::vector<Range>>();
  for (int64_t begin = 3; begin < n && ranges->size() < 900;) {
    const int64_t end =
        std::min(n, begin + (Flip(random) ? Pick(random, 1, 3) : Pick(random, 1, 3000)));
    ranges->push_back({begin, end});
    begin = end + (Flip(random) ? 0 : Pick(random, 1, 900));
  }
  return ranges;
}

TEST_CASE("adamw and zero_ranges") {
  Both both;
  Random random(8);
  for (const int64_t t : {1, 17, 100000}) {
    Memory memory;
    const int64_t n = 1000003;
    StepScalars scalars = Scalars();
    scalars.adam_t = t;
    AdamWOp<TensorView> op{};
    op.master = memory.NewRandom(random, DType::kF32, {n});
    op.m = memory.NewRandom(random, DType::kF32, {n}, Strides::kDense, 0.1);
    op.v = memory.NewRandom(random, DType::kF32, {n}, Strides::kDense, 0.01);
    for (int64_t i = 0; i < n; ++i) op.v.as<float>()[i] = std::abs(op.v.as<float>()[i]);
    op.grad = memory.NewRandom(random, t == 17 ? DType::kF32 : DType::kBF16, {n});
    op.compute = memory.New(DType::kBF16, {n});
    op.scalars = memory.NewScalars(scalars);
    op.weight_decay = 0.1;
    op.flat_begin = 1000;
    op.decay = ManyRanges(random, n + 1000);
    const AdamWOp<TensorView> cpu = CopyOf(memory, op);
    both.OnCpu(&KernelTable::adamw, cpu);
    both.OnGpu(&KernelTable::adamw, op);
    CHECK(SameBits(op.master, cpu.master));
    CHECK(SameBits(op.m, cpu.m));
    CHECK(SameBits(op.v, cpu.v));
    CHECK(SameBits(op.compute, cpu.compute));

    ZeroRangesOp<TensorView> zero{{ManyRanges(random, n)}, op.grad};
    const ZeroRangesOp<TensorView> zero_cpu = CopyOf(memory, zero);
    both.OnCpu(&KernelTable::zero_ranges, zero_cpu);
    both.OnGpu(&KernelTable::zero_ranges, zero);
    CHECK(SameBits(zero.flat, zero_cpu.flat));
  }
}

TEST_CASE("finite_scan and sum_squares") {
  Both both;
  Random random(9);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    Memory memory;
    const int64_t n = 9000011;  // more than one round of every block
    SumSquaresOp<TensorView> squares{
        {}, memory.NewRandom(random, dtype, {n}), memory.New(DType::kF64, {1}), {}};
    const SumSquaresOp<TensorView> cpu = CopyOf(memory, squares);
    both.OnCpu(&KernelTable::sum_squares, cpu);
    both.OnGpu(&KernelTable::sum_squares, squares);
    // Two orders of n positive terms in double.
    CheckClose(squares.out, cpu.out, "sum of squares",
               [&](const Index&) { return 2 * static_cast<double>(n) * 0x1p-53 * Get(cpu.out); });

    FiniteScanOp<TensorView> scan{};
    scan.x = squares.x;
    for (int64_t i = 5; i < n; i += 4999) Set(scan.x, {i}, i % 2 == 0 ? INFINITY : std::nan(""));
    scan.bad_count = memory.New(DType::kF64, {1});
    Set(scan.bad_count, {}, 3);
    scan.unit = 4;
    scan.inject_index = n - 1;
    StepScalars scalars = Scalars();
    scalars.inject_grad_unit = 4;
    scan.scalars = memory.NewScalars(scalars);
    for (const Update update : {Update::kOverwrite, Update::kAccumulate}) {
      scan.update = update;
      const FiniteScanOp<TensorView> scan_cpu = CopyOf(memory, scan);
      both.OnCpu(&KernelTable::finite_scan, scan_cpu);
      both.OnGpu(&KernelTable::finite_scan, scan);
      CHECK(Get(scan.bad_count) == Get(scan_cpu.bad_count));
      CHECK(std::isnan(Get(scan.x, n - 1)));
    }

    // With the sum in the same pass: of these, of finite elements and then of one that is not.
    scan.update = Update::kOverwrite;
    scan.squares = memory.New(DType::kF64, {1});
    const FiniteScanOp<TensorView> both_cpu = CopyOf(memory, scan);
    both.OnCpu(&KernelTable::finite_scan, both_cpu);
    both.OnGpu(&KernelTable::finite_scan, scan);
    CHECK(Get(scan.bad_count) == Get(both_cpu.bad_count));
    CHECK(std::isnan(Get(scan.squares)));
    scan.update = Update::kAccumulate;
    scan.x = memory.NewRandom(random, dtype, {n});
    Set(scan.bad_count, {}, 3);
    squares.x = scan.x;
    both.OnGpu(&KernelTable::sum_squares, squares);
    for (const int64_t injected : {int64_t{-1}, n - 2, n - 1}) {
      scalars.inject_grad_unit = injected < 0 ? -1 : 4;
      scan.scalars = memory.NewScalars(scalars);
      scan.inject_index = std::max<int64_t>(injected, 0);
      both.OnGpu(&KernelTable::finite_scan, scan);
      CHECK(Get(scan.bad_count) == (injected < 0 ? 3 : injected == n - 2 ? 4 : 6));
      if (injected < 0)
        CHECK(SameBits(scan.squares, squares.out));
      else
        CHECK(std::isnan(Get(scan.squares)));
    }
  }
}

TEST_CASE("step_stats of many ranks is the CPU's to the last bit") {
  Both both;
  Random random(10);
  for (const bool bad : {false, true}) {
    Memory memory;
    StepStatsOp<TensorView> op{};
    op.units = 37;
    op.shard_world = 32;
    op.clip = 1;
    op.rows = memory.NewRandom(random, DType::kF64, {64, 2 * 37 + 1});
    ForEach(op.rows.layout, [&](const Index& i) {
      const double value = std::abs(Get(op.rows, i));
      Set(op.rows, i, i[1] < 37 || i[1] == 74 ? value : bad && i[0] == 50 && i[1] == 70 ? 2 : 0);
    });
    op.scalars = memory.NewScalars(Scalars());
    const StepStatsOp<TensorView> cpu = CopyOf(memory, op);
    both.OnCpu(&KernelTable::step_stats, cpu);
    both.OnGpu(&KernelTable::step_stats, op);
    CHECK(SameBits(op.scalars, cpu.scalars));
    CHECK(ScalarsOf(op.scalars).applied == (bad ? 0 : 1));
  }
}

}  // namespace
}  // namespace millrace::test
