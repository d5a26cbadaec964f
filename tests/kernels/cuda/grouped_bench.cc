// Grouped products of a mixture of experts on this GPU: forward, input gradient and weight gradient
// of rows dealt out to experts evenly and by Zipf's law. A markdown table on stdout.
//
//   grouped_bench [--rows S] [--in K] [--out N]      49152, 2688 and 1856 if not given
//
// Zipf: expert e has a share of the rows in proportion to 1 / (e + 1). Operands are random; calls
// follow each other on the same operands. TFLOP/s count live rows; there are no others.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/moe/grouped_matmul.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/error.h"
#include "tests/kernels/cuda/matmul_operands.h"

namespace millrace::test {
namespace {

struct Sizes {
  int64_t rows = 49152, in = 2688, out = 1856;
};

// Milliseconds per call: the median of seven rounds of at least 20 ms.
double Time(CudaStream& stream, const std::function<void()>& call) {
  cudaEvent_t begin, end;
  MR_CUDA(cudaEventCreate(&begin));
  MR_CUDA(cudaEventCreate(&end));
  const auto round = [&](int calls) {
    MR_CUDA(cudaEventRecord(begin, stream.get()));
    for (int i = 0; i < calls; ++i) call();
    MR_CUDA(cudaEventRecord(end, stream.get()));
    MR_CUDA(cudaEventSynchronize(end));
    float ms = 0;
    MR_CUDA(cudaEventElapsedTime(&ms, begin, end));
    return static_cast<double>(ms) / calls;
  };
  round(3);
  const int calls = std::max(1, static_cast<int>(20 / round(3)));
  std::vector<double> rounds;
  for (int i = 0; i < 7; ++i) rounds.push_back(round(calls));
  MR_CUDA(cudaEventDestroy(begin));
  MR_CUDA(cudaEventDestroy(end));
  std::nth_element(rounds.begin(), rounds.begin() + 3, rounds.end());
  return rounds[3];
}

// Where each expert's rows begin, [experts + 1].
std::vector<int32_t> OffsetsOf(int64_t rows, int64_t experts, bool zipf) {
  double sum = 0;
  for (int64_t e = 0; e < experts; ++e) sum += zipf ? 1.0 / static_cast<double>(e + 1) : 1.0;
  std::vector<int32_t> offsets = {0};
  double share = 0;
  for (int64_t e = 0; e < experts; ++e) {
    share += (zipf ? 1.0 / static_cast<double>(e + 1) : 1.0) / sum;
    offsets.push_back(static_cast<int32_t>(share * static_cast<double>(rows) + 0.5));
  }
  offsets.back() = static_cast<int32_t>(rows);
  return offsets;
}

TensorView OnDevice(DeviceOperands& operands, Stream& stream, const std::vector<int32_t>& values) {
  const TensorView view =
      operands.New(DenseLayout(DType::kI32, {static_cast<int64_t>(values.size())}));
  MR_CUDA(cudaMemcpyAsync(view.data, values.data(), values.size() * sizeof(int32_t),
                          cudaMemcpyHostToDevice, AsCuda(stream).get()));
  stream.Sync();
  return view;
}

void Bench(CudaDevice& device, const Sizes& s, int64_t experts, bool zipf) {
  const std::unique_ptr<Stream> stream = device.MakeStream(StreamRole::kCompute);
  DeviceOperands operands(device, *stream);
  const auto bf16 = [](std::initializer_list<int64_t> dims) {
    return DenseLayout(DType::kBF16, dims);
  };
  const TensorView offsets = OnDevice(operands, *stream, OffsetsOf(s.rows, experts, zipf));
  const TensorView x = operands.Random(bf16({s.rows, s.in})),
                   d_y = operands.Random(bf16({s.rows, s.out})),
                   weight = operands.Random(bf16({experts, s.out, s.in}));
  const auto row = [&](const char* what, const std::function<void()>& call) {
    const double ms = Time(AsCuda(*stream), call), flops = 2.0 * static_cast<double>(s.rows) *
                                                           static_cast<double>(s.in) *
                                                           static_cast<double>(s.out);
    fmt::print("| {} | {} | {} | {:.3f} | {:.1f} |\n", experts, zipf ? "Zipf" : "even", what, ms,
               flops / ms / 1e9);
    std::fflush(stdout);
  };
  GroupedMatmulOp<TensorView> forward;
  forward.a = x, forward.b = weight, forward.offsets = offsets;
  std::swap(forward.b.layout.dims[1], forward.b.layout.dims[2]);
  std::swap(forward.b.layout.strides[1], forward.b.layout.strides[2]);
  forward.out = operands.New(bf16({s.rows, s.out}));
  row("forward", [&] { CudaGroupedMatmul(forward, *stream); });
  GroupedMatmulOp<TensorView> d_input;
  d_input.a = d_y, d_input.b = weight, d_input.offsets = offsets;
  d_input.out = operands.New(bf16({s.rows, s.in}));
  row("input gradient", [&] { CudaGroupedMatmul(d_input, *stream); });
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    GroupedWeightGradOp<TensorView> d_weight;
    d_weight.d_out = d_y, d_weight.a = x, d_weight.offsets = offsets;
    d_weight.out = operands.New(DenseLayout(dtype, {experts, s.out, s.in}));
    row(dtype == DType::kBF16 ? "weight gradient, bf16" : "weight gradient, f32",
        [&] { CudaGroupedWeightGrad(d_weight, *stream); });
  }
}

int Main(int argc, char** argv) {
  Sizes sizes;
  for (int i = 1; i < argc; ++i) {
    int64_t* const value = std::strcmp(argv[i], "--rows") == 0  ? &sizes.rows
                           : std::strcmp(argv[i], "--in") == 0  ? &sizes.in
                           : std::strcmp(argv[i], "--out") == 0 ? &sizes.out
                                                                : nullptr;
    const int64_t given = i + 1 < argc ? std::atoll(argv[i + 1]) : 0;
    if (value == nullptr || given <= 0) {
      fmt::print(stderr, "usage: grouped_bench [--rows S] [--in K] [--out N]\n");
      return 2;
    }
    *value = given;
    ++i;
  }
  CudaDevice device(0);
  fmt::print("{}: {} rows, {} -> {}, bf16\n\n", device.name(), sizes.rows, sizes.in, sizes.out);
  fmt::print("| experts | load | product | ms | TFLOP/s |\n|---|---|---|---|---|\n");
  for (const int64_t experts : {128, 32, 16})
    for (const bool zipf : {false, true}) Bench(device, sizes, experts, zipf);
  return 0;
}

}  // namespace
}  // namespace millrace::test

int main(int argc, char** argv) {
  try {
    return millrace::test::Main(argc, argv);
  } catch (const millrace::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
