// Speed of the products of GPT-2 124M, Llama 1B and Llama 8B on this GPU, with the library's
// default algorithms and with tuned ones, and of column sums: two markdown tables on stdout.
//
//   matmul_bench [--model NAME] [--save TABLE.json]
//
// tuned, default   TFLOP/s of the product alone, from the tuner: random operands that are not in
//                  the cache.
// op               TFLOP/s of the kernel-table entry with the tuned algorithm, activation included,
//                  adding to its result where the plan does; back to back on the same operands. A
//                  weight gradient in bf16 is the product of the f32 one, and a kernel that adds
//                  it.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/matmul/matmul.h"
#include "kernels/cuda/matmul/matmul_plans.h"
#include "kernels/cuda/tuning/tuning.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/error.h"
#include "tests/kernels/cuda/matmul_operands.h"

namespace millrace::test {
namespace {

struct Bench {
  std::string model, name;
  MatmulOp<Shape> op;
};

struct Linear {
  const char* name;
  int64_t out, in;
  bool bias, gelu;
};

// A linear layer y [rows, out] = x [rows, in] w^T, forward and backward.
void AddLinear(std::vector<Bench>& benches, const char* model, int64_t rows, const Linear& l) {
  constexpr DType kBF16 = DType::kBF16, kF32 = DType::kF32;
  MatmulOp<Shape> forward = ShapesOf({kBF16, kBF16, rows, l.out, l.in, false, true});
  if (l.bias) forward.bias = {DenseLayout(kBF16, {l.out}), true};
  forward.epilogue = l.gelu ? Epilogue::kBiasGelu : l.bias ? Epilogue::kBias : Epilogue::kNone;
  if (l.gelu) forward.pre = forward.out;
  benches.push_back({model, fmt::format("{} forward{}", l.name, l.gelu ? " + gelu" : ""), forward});
  benches.push_back({model, fmt::format("{} d_input", l.name),
                     ShapesOf({kBF16, kBF16, rows, l.in, l.out, false, false})});
  for (const DType result : {kF32, kBF16}) {
    MatmulOp<Shape> d_weight = ShapesOf({kBF16, result, l.out, l.in, rows, true, false});
    d_weight.update = Update::kAccumulate;
    d_weight.rounding = Rounding::kOnce;
    benches.push_back({model, fmt::format("{} d_weight {}", l.name, Name(result)), d_weight});
  }
}

std::vector<Bench> Benches() {
  std::vector<Bench> benches;
  const int64_t gpt2 = 64 * 1024;
  for (const Linear& l : {Linear{"qkv", 2304, 768, true, false},
                          {"proj", 768, 768, true, false},
                          {"fc", 3072, 768, true, true},
                          {"fc_proj", 768, 3072, true, false}})
    AddLinear(benches, "gpt2_124m", gpt2, l);
  AddLinear(benches, "gpt2_124m", 9472, {"head", 50304, 768, false, false});
  const int64_t llama_1b = 8 * 4096;
  for (const Linear& l : {Linear{"qkv", 3072, 2048, false, false},
                          {"proj", 2048, 2048, false, false},
                          {"gate_up", 16384, 2048, false, false},
                          {"down", 2048, 8192, false, false}})
    AddLinear(benches, "llama_1b", llama_1b, l);
  AddLinear(benches, "llama_1b", 4096, {"head", 128256, 2048, false, false});
  const int64_t llama_8b = 8192;
  for (const Linear& l : {Linear{"qkv", 6144, 4096, false, false},
                          {"proj", 4096, 4096, false, false},
                          {"gate_up", 28672, 4096, false, false},
                          {"down", 4096, 14336, false, false}})
    AddLinear(benches, "llama_8b", llama_8b, l);
  AddLinear(benches, "llama_8b", 4096, {"head", 128256, 4096, false, false});
  return benches;
}

// Median over rounds of the microseconds of one call.
template <class Call>
double Microseconds(Stream& stream, double expected_us, Call&& call) {
  const int calls = static_cast<int>(std::clamp(5000 / expected_us, 3.0, 500.0));
  cudaEvent_t begin = nullptr, end = nullptr;
  MR_CUDA(cudaEventCreate(&begin));
  MR_CUDA(cudaEventCreate(&end));
  call();
  std::vector<double> rounds;
  for (int round = 0; round < 7; ++round) {
    MR_CUDA(cudaEventRecord(begin, AsCuda(stream).get()));
    for (int i = 0; i < calls; ++i) call();
    MR_CUDA(cudaEventRecord(end, AsCuda(stream).get()));
    MR_CUDA(cudaEventSynchronize(end));
    float ms = 0;
    MR_CUDA(cudaEventElapsedTime(&ms, begin, end));
    rounds.push_back(1e3 * ms / calls);
  }
  MR_CUDA(cudaEventDestroy(begin));
  MR_CUDA(cudaEventDestroy(end));
  std::nth_element(rounds.begin(), rounds.begin() + 3, rounds.end());
  return rounds[3];
}

void PrintProducts(CudaDevice& device, Stream& stream, const std::vector<Bench>& benches,
                   const TuningTable& table) {
  fmt::print(
      "| model | product | M x N x K | default TFLOP/s | tuned TFLOP/s | op TFLOP/s | op us | "
      "algorithm |\n");
  fmt::print("|---|---|---|---:|---:|---:|---:|---|\n");
  for (const Bench& bench : benches) {
    const MatmulKey key = KeyOf(bench.op).value();
    const TunedMatmul& tuned = table.matmuls.at(key);
    const double flops = Flops(bench.op);
    DeviceOperands operands(device, stream);
    const MatmulOp<TensorView> op = operands.Make(bench.op);
    const double us = Microseconds(stream, tuned.microseconds, [&] { CudaMatmul(op, stream); });
    fmt::print("| {} | {} | {} x {} x {} | {:.0f} | {:.0f} | {:.0f} | {:.1f} | {} |\n", bench.model,
               bench.name, key.m, key.n, key.k, flops / tuned.default_microseconds / 1e6,
               flops / tuned.microseconds / 1e6, flops / us / 1e6, us, tuned.description);
    std::fflush(stdout);
  }
}

void PrintColumnSums(CudaDevice& device, Stream& stream) {
  fmt::print("\n| column_sum | us | GB/s |\n|---|---:|---:|\n");
  for (const int64_t columns : {768, 2304, 3072}) {
    ColumnSumOp<Shape> shape;
    shape.x = {DenseLayout(DType::kBF16, {65536, columns}), true};
    shape.out = {DenseLayout(DType::kF32, {columns}), true};
    DeviceOperands operands(device, stream);
    const ColumnSumOp<TensorView> op = operands.Make(shape);
    // Two inputs in turn: together they exceed the cache.
    ColumnSumOp<TensorView> other = op;
    other.x = operands.Random(shape.x.layout);
    const double us = Microseconds(stream, 200,
                                   [&] {
                                     CudaColumnSum(op, stream);
                                     CudaColumnSum(other, stream);
                                   }) /
                      2;
    fmt::print("| bf16 65536 x {} | {:.1f} | {:.0f} |\n", columns, us,
               static_cast<double>(op.x.bytes()) / us / 1e3);
  }
}

// Host time of a call: what a step that is not captured pays per product.
void PrintHostTime(CudaDevice& device, Stream& stream) {
  DeviceOperands operands(device, stream);
  const MatmulOp<TensorView> op =
      operands.Make(ShapesOf({DType::kBF16, DType::kBF16, 128, 128, 128, false, true}));
  const double us = Microseconds(stream, 10, [&] { CudaMatmul(op, stream); });
  fmt::print("\n128 x 128 x 128, launch-bound: {:.2f} us a call\n", us);
}

void Run(const std::string& model, const std::string& save) {
  CudaDevice device(0);
  const std::unique_ptr<Stream> stream = device.MakeStream(StreamRole::kCompute);
  std::vector<Bench> benches;
  for (Bench& bench : Benches())
    if (model.empty() || bench.model == model) benches.push_back(std::move(bench));
  MR_REQUIRE(ErrorCode::kInvalidArgument, !benches.empty(),
             "--model {}: gpt2_124m, llama_1b and llama_8b are known", model);
  std::vector<MatmulOp<Shape>> ops;
  for (const Bench& bench : benches) ops.push_back(bench.op);
  const TuningTable table = Tune(device, ops, {});
  device.Attached<MatmulPlans>().Install(table);
  fmt::print("{}, {}, tuning table {}\n\n", table.device, table.library_version, table.Hash());
  PrintProducts(device, *stream, benches, table);
  PrintColumnSums(device, *stream);
  PrintHostTime(device, *stream);
  if (!save.empty()) std::ofstream(save) << table.ToText();
}

}  // namespace
}  // namespace millrace::test

int main(int argc, char** argv) {
  std::string model, save;
  for (int i = 1; i < argc; i += 2) {
    const bool is_model = std::strcmp(argv[i], "--model") == 0;
    if (i + 1 == argc || (!is_model && std::strcmp(argv[i], "--save") != 0)) {
      fmt::print(stderr, "usage: matmul_bench [--model NAME] [--save TABLE.json]\n");
      return 2;
    }
    (is_model ? model : save) = argv[i + 1];
  }
  try {
    millrace::test::Run(model, save);
  } catch (const millrace::Error& e) {
    fmt::print(stderr, "matmul_bench: {}\n", e.what());
    return 1;
  }
}
