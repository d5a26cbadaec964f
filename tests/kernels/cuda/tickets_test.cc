#include "kernels/cuda/tickets.h"

#include <catch2/catch.hpp>
#include <set>
#include <vector>

#include "kernels/cuda/step/statistics.h"
#include "runtime/base/step_scalars.h"
#include "tests/kernels/cuda/matmul_operands.h"

namespace millrace::test {

TEST_CASE("an address has a word of its own, zero at first, for good") {
  CudaDevice device(0);
  const auto stream = device.MakeStream(StreamRole::kCompute);
  auto& tickets = device.Attached<cuda::Tickets>();
  const std::vector<std::byte> somewhere(5000);
  std::vector<uint64_t*> words;
  for (const std::byte& address : somewhere) words.push_back(tickets.Of(&address));
  CHECK(std::set(words.begin(), words.end()).size() == somewhere.size());
  uint64_t bits = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    CHECK(tickets.Of(&somewhere[i]) == words[i]);
    uint64_t word = 1;
    device.CopyToHost(&word, reinterpret_cast<std::byte*>(words[i]), sizeof word, *stream);
    bits |= word;
  }
  CHECK(bits == 0);
}

namespace {

// What one stream works on.
struct Work {
  std::unique_ptr<Stream> stream;
  SumSquaresOp<TensorView> squares{};
  FiniteScanOp<TensorView> scan{};
};

double ValueOf(CudaDevice& device, const TensorView& view, Stream& stream) {
  double value = 0;
  device.CopyToHost(&value, view.data, sizeof value, stream);
  return value;
}

}  // namespace

// Blocks of both grids are on the device together; each launch must find its own last block, and
// leave its word as the next needs it, in calls and in graphs.
TEST_CASE("sum_squares and finite_scan on two streams at once") {
  CudaDevice device(0);
  const auto setup = device.MakeStream(StreamRole::kCompute);
  DeviceOperands operands(device, *setup);
  StepScalars scalars{};
  scalars.inject_grad_unit = -1;
  const TensorView on_device = operands.New(DenseLayout(DType::kU8, {sizeof scalars}));
  device.CopyFromHost(on_device.data, &scalars, sizeof scalars, *setup);

  std::vector<Work> works(2);
  for (size_t i = 0; i < works.size(); ++i) {
    Work& work = works[i];
    work.stream = device.MakeStream(StreamRole::kCompute);
    const int64_t n = 1000003 + 700001 * static_cast<int64_t>(i);
    work.squares.x = operands.Random(DenseLayout(DType::kF32, {n}));
    work.squares.out = operands.New(DenseLayout(DType::kF64, {1}));
    const SumSquaresOp<Shape> shape =
        ConvertOp<SumSquaresOp, TensorView, Shape>(work.squares, [](const TensorView& view) {
          return Shape{view.layout, static_cast<bool>(view)};
        });
    work.squares.scratch =
        operands.New(DenseLayout(DType::kU8, {WorkspaceBytes(shape, Backend::kCuda)}));
    // Every byte 0xff: all elements are NaN.
    work.scan.x = operands.New(DenseLayout(DType::kBF16, {n}));
    work.scan.bad_count = operands.New(DenseLayout(DType::kF64, {1}));
    work.scan.scalars = on_device;
    work.scan.update = Update::kOverwrite;
  }
  setup->Sync();

  const auto issue = [](Work& work) {
    CudaSumSquares(work.squares, *work.stream);
    CudaFiniteScan(work.scan, *work.stream);
  };
  std::vector<double> alone;
  std::vector<std::unique_ptr<Graph>> graphs;
  for (Work& work : works) {
    issue(work);
    alone.push_back(ValueOf(device, work.squares.out, *work.stream));
    // Uniform in (-1, 1): the mean square is a third.
    CHECK(alone.back() == Approx(static_cast<double>(work.squares.x.numel()) / 3).epsilon(0.01));
    device.BeginCapture(*work.stream);
    for (int i = 0; i < 10; ++i) issue(work);
    graphs.push_back(device.EndCapture(*work.stream));
  }
  for (int round = 0; round < 20; ++round) {
    for (size_t i = 0; i < works.size(); ++i) graphs[i]->Launch(*works[i].stream);
    for (int i = 0; i < 10; ++i)
      for (Work& work : works) issue(work);
    for (size_t i = 0; i < works.size(); ++i) {
      CHECK(ValueOf(device, works[i].squares.out, *works[i].stream) == alone[i]);
      CHECK(ValueOf(device, works[i].scan.bad_count, *works[i].stream) ==
            static_cast<double>(works[i].scan.x.numel()));
    }
  }
}

}  // namespace millrace::test
