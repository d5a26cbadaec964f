// Attention of the shapes that the benchmarks train, on this GPU: the scratch that kernels
// need, beside what is planned, time and speed of forward and backward. A
// markdown table on stdout.
//
//   attention_bench [--own]     --own: our own f32 kernels, too
//
// TFLOP/s count the lower triangle only, as Flops() does. Operands are random; calls follow each
// other on the same operands.
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <functional>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/attention_cudnn.h"
#include "kernels/cuda/attention/attention_own.h"
#include "kernels/cuda/attention/attention_turns.h"
#include "kernels/ops/attention_choice.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/error.h"
#include "tests/kernels/cuda/attention_operands.h"

namespace millrace::test {
namespace {

// Milliseconds per call.
double Time(CudaStream& stream, const std::function<void()>& call) {
  cudaEvent_t begin, end;
  MR_CUDA(cudaEventCreate(&begin));
  MR_CUDA(cudaEventCreate(&end));
  for (int i = 0; i < 3; ++i) call();
  int calls = 5;
  float elapsed = 0;
  for (;; calls *= 4) {
    MR_CUDA(cudaEventRecord(begin, stream.get()));
    for (int i = 0; i < calls; ++i) call();
    MR_CUDA(cudaEventRecord(end, stream.get()));
    MR_CUDA(cudaEventSynchronize(end));
    MR_CUDA(cudaEventElapsedTime(&elapsed, begin, end));
    if (elapsed > 100 || calls > 1000) break;
  }
  MR_CUDA(cudaEventDestroy(begin));
  MR_CUDA(cudaEventDestroy(end));
  return elapsed / calls;
}

double MiB(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

void Row(const AttentionSize& size, const char* what, double ms, double flops, int64_t needed,
         int64_t planned, const std::string& calls) {
  fmt::print("| {} {} {} {}/{} {} | {} | {:.3f} | {:.1f} | {:.1f} | {:.1f} | {} |\n",
             Name(size.dtype), size.batch, size.length, size.heads, size.kv_heads, size.depth, what,
             ms, flops / ms / 1e9, MiB(needed), MiB(planned), calls);
  std::fflush(stdout);
}

void BenchCudnn(CudaDevice& device, AttentionSize size) {
  const std::unique_ptr<Stream> stream = device.MakeStream(StreamRole::kCompute);
  CudaStream& cuda = AsCuda(*stream);
  for (const bool deterministic : {false, true}) {
    size.deterministic = deterministic;
    DeviceOperands operands(device, *stream);
    const AttentionOps ops = MakeAttention(operands, size);
    const auto forward = ShapesOf(ops.forward);
    const auto grad = ShapesOf(ops.grad);
    const double forward_ms = Time(cuda, [&] { cuda::CudnnAttention(ops.forward, *stream); });
    if (!deterministic)
      Row(size, "forward", forward_ms, Flops(forward), cuda::CudnnBytes(ops.forward, device),
          WorkspaceBytes(forward, Backend::kCuda), "1");
    const cudaDeviceProp& properties = device.properties();
    const bool by_warpgroups = cuda::HasInTurn(properties.major, properties.minor);
    if (!deterministic && by_warpgroups)
      Row(size, "forward, by rows", Time(cuda, [&] { cuda::RowsAttention(ops.forward, *stream); }),
          Flops(forward), 0, WorkspaceBytes(forward, Backend::kCuda), "1");
    const double grad_ms = Time(cuda, [&] { cuda::CudnnAttentionGrad(ops.grad, *stream); });
    const cuda::AttentionSlices slices = cuda::SlicesOf(grad);
    Row(size, deterministic ? "backward, deterministic" : "backward", grad_ms, Flops(grad),
        cuda::CudnnBytes(ops.grad, device), WorkspaceBytes(grad, Backend::kCuda),
        fmt::format("B {} Hkv {}", slices.batch, slices.kv_heads));
    if (!deterministic || !by_warpgroups) continue;
    Row(size, "backward, in turn",
        Time(cuda, [&] { cuda::InTurnAttentionGrad(ops.grad, *stream); }), Flops(grad),
        cuda::InTurnScratchOf(grad).bytes, WorkspaceBytes(grad, Backend::kCuda), "1");
  }
}

void BenchOwn(CudaDevice& device, const AttentionSize& size) {
  const std::unique_ptr<Stream> stream = device.MakeStream(StreamRole::kCompute);
  DeviceOperands operands(device, *stream);
  const AttentionOps ops = MakeAttention(operands, size);
  const auto forward = ShapesOf(ops.forward);
  const auto grad = ShapesOf(ops.grad);
  Row(size, "own forward", Time(AsCuda(*stream), [&] { cuda::OwnAttention(ops.forward, *stream); }),
      Flops(forward), 0, WorkspaceBytes(forward, Backend::kCuda), "1");
  Row(size, "own backward",
      Time(AsCuda(*stream), [&] { cuda::OwnAttentionGrad(ops.grad, *stream); }), Flops(grad), 0,
      WorkspaceBytes(grad, Backend::kCuda), "1");
}

int Main(int argc, char** argv) {
  CudaDevice device(0);
  fmt::print("{}\n\n| dtype B T H/Hkv D | op | ms | TFLOP/s | needed MiB | planned MiB | call |\n",
             device.name());
  fmt::print("|---|---|---|---|---|---|---|\n");
  for (const AttentionSize& size :
       {AttentionSize{64, 1024, 12, 12, 64}, AttentionSize{16, 1024, 25, 25, 64},
        AttentionSize{8, 4096, 32, 8, 64}, AttentionSize{4, 4096, 32, 8, 64},
        AttentionSize{1, 8192, 32, 8, 128}, AttentionSize{4, 256, 6, 6, 64},
        AttentionSize{4, 1024, 12, 12, 64}, AttentionSize{1, 2048, 16, 16, 128}})
    BenchCudnn(device, size);
  if (argc > 1 && std::strcmp(argv[1], "--own") == 0) {
    for (const AttentionSize& size : {AttentionSize{8, 1024, 12, 12, 64, DType::kF32},
                                      AttentionSize{2, 2048, 16, 4, 128, DType::kF32},
                                      AttentionSize{1, 2048, 8, 8, 256, DType::kF32},
                                      AttentionSize{4, 256, 6, 6, 32, DType::kF32}})
      BenchOwn(device, size);
  }
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
