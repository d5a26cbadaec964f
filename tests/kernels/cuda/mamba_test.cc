// A Mamba-2 mixer's ops on the GPU beside the CPU, at sizes that the contract's small shapes do not
// reach: several chunks of several sequences, all heads of a group, columns of wide rows.
#include <cmath>

#include "tests/kernels/cuda/both.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

constexpr int64_t kBatch = 2, kLength = 1000, kHeads = 16, kChannels = 64, kGroups = 2,
                  kStates = 128;

TensorView Absolute(Memory& memory, const TensorView& view) {
  const TensorView copy = memory.Clone(view);
  ForEach(copy.layout, [&](const Index& i) { Set(copy, i, std::abs(Get(view, i))); });
  return copy;
}

// The op with every factor's magnitude in its place: its results are sums of the magnitudes of what
// the op's own are sums of.
template <template <class> class Op>
Op<TensorView> OfMagnitudes(Memory& memory, const Op<TensorView>& op) {
  Op<TensorView> magnitudes = CopyOf(memory, op);
  magnitudes.x = Absolute(memory, op.x);
  magnitudes.b = Absolute(memory, op.b);
  magnitudes.c = Absolute(memory, op.c);
  magnitudes.d = Absolute(memory, op.d);
  if constexpr (requires { op.d_out; }) magnitudes.d_out = Absolute(memory, op.d_out);
  return magnitudes;
}

template <class Op>
void FillScan(Random& random, Memory& memory, DType dtype, Op& op) {
  op.x = memory.NewRandom(random, dtype, {kBatch, kLength, kHeads, kChannels});
  op.b = memory.NewRandom(random, dtype, {kBatch, kLength, kGroups, kStates});
  op.c = memory.NewRandom(random, dtype, {kBatch, kLength, kGroups, kStates});
  op.dt = memory.NewRandom(random, DType::kF32, {kBatch, kLength, kHeads}, Strides::kDense, 0.1);
  ForEach(op.dt.layout, [&](const Index& i) { Set(op.dt, i, std::abs(Get(op.dt, i))); });
  op.a_log = memory.NewRandom(random, DType::kF32, {kHeads});
  op.d = memory.NewRandom(random, DType::kF32, {kHeads});
}

// As in the contract (tests/kernels/contract/ssd_scan.cc): six roundings to bf16 where products
// are on tensor cores; and the longest sums in f32, of both sides.
double Relative(DType dtype) {
  const double f32 =
      2 * (kLength + kStates + kChannels + 8 + 4 * 0.1 * kLength * std::exp(1.0)) * kU;
  return f32 + (dtype == DType::kBF16 ? 6 * 0x1p-9 : 0);
}

void CheckScaled(const TensorView& got, const TensorView& want, const TensorView& magnitude,
                 DType dtype, const char* name) {
  CheckClose(got, want, name, [&](const Index& i) { return Relative(dtype) * Get(magnitude, i); });
}

TEST_CASE("a scan of several chunks, sequences and heads of a group is the CPU's") {
  const DType dtype = GENERATE(DType::kBF16, DType::kF32);
  Random random(80);
  Memory memory;
  Both both;
  SsdScanOp<TensorView> op{};
  FillScan(random, memory, dtype, op);
  op.out = memory.New(dtype, {kBatch, kLength, kHeads, kChannels});
  const SsdScanOp<TensorView> cpu = CopyOf(memory, op), size = OfMagnitudes(memory, op);
  both.OnCpu(&KernelTable::ssd_scan, cpu);
  both.OnCpu(&KernelTable::ssd_scan, size);
  both.OnGpu(&KernelTable::ssd_scan, op);
  CheckScaled(op.out, cpu.out, size.out, dtype, "out");
}

TEST_CASE("so are its gradients") {
  const DType dtype = GENERATE(DType::kBF16, DType::kF32);
  Random random(81);
  Memory memory;
  Both both;
  SsdScanGradOp<TensorView> op{};
  FillScan(random, memory, dtype, op);
  op.d_out = memory.NewRandom(random, dtype, {kBatch, kLength, kHeads, kChannels});
  op.d_x = memory.NewLike(op.x), op.d_b = memory.NewLike(op.b), op.d_c = memory.NewLike(op.c);
  op.d_dt = memory.NewLike(op.dt);
  op.d_a_log = memory.New(DType::kF32, {kHeads}), op.d_d = memory.New(DType::kF32, {kHeads});
  const SsdScanGradOp<TensorView> cpu = CopyOf(memory, op), size = OfMagnitudes(memory, op);
  both.OnCpu(&KernelTable::ssd_scan_grad, cpu);
  both.OnCpu(&KernelTable::ssd_scan_grad, size);
  both.OnGpu(&KernelTable::ssd_scan_grad, op);
  CheckScaled(op.d_x, cpu.d_x, size.d_x, dtype, "d_x");
  CheckScaled(op.d_b, cpu.d_b, size.d_b, dtype, "d_b");
  CheckScaled(op.d_c, cpu.d_c, size.d_c, dtype, "d_c");
  CheckScaled(op.d_d, cpu.d_d, size.d_d, dtype, "d_d");
}

}  // namespace
}  // namespace millrace::test
