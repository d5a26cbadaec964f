// Attention with sequences split over a context group, on a GPU, against whole sequences on the
// CPU, which compute in f32 with other blocks. Run repeats each op at other addresses and wants the
// same bits.
#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/attention_own.h"
#include "kernels/ops/attention_choice.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/base/cuda/cuda_device.h"
#include "tests/kernels/support/context_case.h"
#include "tests/kernels/support/subject.h"

namespace millrace::test {
namespace {

// A difference of two tensors relative to one of them, over all elements.
struct Deviation {
  double difference = 0, norm = 0;
  void Add(double got, double expected) {
    difference += (got - expected) * (got - expected);
    norm += expected * expected;
  }
  double value() const { return std::sqrt(difference / norm); }
};

// Errors of a few roundings to bf16, each at most 2^-8 of its term and of any sign, or to f16,
// 2^-11; a wrong mask, chunk or head is an error of the tensor's size. In f32 sums of up to 1024
// terms, likewise.
constexpr double kFewBf16 = 0x1p-6, kFewF16 = 0x1p-9, kFewF32 = 0x1p-16;

struct Devices {
  std::unique_ptr<Device> host = MakeHostDevice();
  std::unique_ptr<Stream> host_stream = host->MakeStream(StreamRole::kCompute);
  Subject cpu{CpuKernels(), *host, *host_stream, Backend::kCpu};
  CudaDevice device{0};
  std::unique_ptr<Stream> stream = device.MakeStream(StreamRole::kCompute);
};

void CheckSplit(const ContextSizes& s, const KernelTable& table, double bound) {
  Devices devices;
  const Subject gpu{table, devices.device, *devices.stream, Backend::kCuda, 16};
  ContextCase data(s);
  Run(devices.cpu, data.memory, devices.cpu.table.attention, ContextCase::ForwardOf(data.whole));
  Run(devices.cpu, data.memory, devices.cpu.table.attention_grad, data.whole);
  for (int64_t c = 0; c < s.ranks; ++c) {
    CAPTURE(s.ranks, s.chunk, s.batch, s.heads, s.kv_heads, s.depth, c);
    const AttentionGradOp<TensorView> local = data.Split(c), masked = data.MaskedTo(c);
    Run(devices.cpu, data.memory, devices.cpu.table.attention_grad, masked);
    Run(gpu, data.memory, gpu.table.attention, ContextCase::ForwardOf(local));
    Run(gpu, data.memory, gpu.table.attention_grad, local);
    Deviation out, lse, d_q, d_k, d_v;
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t i = 0; i < s.rows(); ++i) {
        const int64_t t = s.PositionOf(c, i);
        for (int64_t h = 0; h < s.heads; ++h) {
          lse.Add(Get(local.lse, b, h, i), Get(data.whole.lse, b, h, t));
          for (int64_t d = 0; d < s.depth; ++d) {
            out.Add(Get(local.out, b, i, h, d), Get(data.whole.out, b, t, h, d));
            d_q.Add(Get(local.d_q, b, i, h, d), Get(data.whole.d_q, b, t, h, d));
          }
        }
      }
    }
    int64_t not_zero = 0;
    data.ForGathered([&](int64_t b, int64_t t, int64_t outer, int64_t row) {
      for (int64_t h = 0; h < s.kv_heads; ++h) {
        for (int64_t d = 0; d < s.depth; ++d) {
          d_k.Add(Get(local.d_k, outer, row, h, d), Get(masked.d_k, b, t, h, d));
          d_v.Add(Get(local.d_v, outer, row, h, d), Get(masked.d_v, b, t, h, d));
          if (t >= (2 * s.ranks - c) * s.chunk)
            not_zero += Get(local.d_k, outer, row, h, d) != 0 || Get(local.d_v, outer, row, h, d);
        }
      }
    });
    CHECK(lse.value() <= kFewF32);
    CHECK(out.value() <= bound);
    CHECK(d_q.value() <= bound);
    CHECK(d_k.value() <= bound);
    CHECK(d_v.value() <= bound);
    CHECK(not_zero == 0);
  }
}

// Chunks below, at and across a tile of 64, B above 1, grouped queries.
constexpr ContextSizes kCases[] = {
    {1, 50, 2, 2, 1, 64},   {2, 8, 3, 2, 1, 16}, {2, 64, 2, 4, 2, 64}, {3, 37, 3, 3, 1, 40},
    {3, 100, 1, 2, 2, 128}, {4, 9, 2, 6, 3, 8},  {4, 96, 2, 4, 1, 64}, {4, 128, 1, 2, 1, 128}};

TEST_CASE("our own kernels: a rank's rows of split attention, f32 and 16 bits", "[context]") {
  KernelTable own;
  own.attention = cuda::OwnAttention;
  own.attention_grad = cuda::OwnAttentionGrad;
  for (ContextSizes s : kCases) {
    DYNAMIC_SECTION(s.ranks << " ranks, chunks of " << s.chunk) {
      // A section each: under racecheck the largest take minutes, and can be a process each.
      SECTION("f32") { CheckSplit(s, own, kFewF32); }
      s.dtype = DType::kBF16;
      SECTION("bf16") { CheckSplit(s, own, kFewBf16); }
      s.window = s.chunk + 3;  // begins within another chunk than it ends
      SECTION("bf16, a window") { CheckSplit(s, own, kFewBf16); }
      s.dtype = DType::kF16;
      SECTION("f16, a window") { CheckSplit(s, own, kFewF16); }
    }
  }
}

TEST_CASE("the chosen kernels: a rank's rows of split attention in 16 bits", "[context]") {
  KernelTable chosen;
  chosen.attention = CudaAttention;
  chosen.attention_grad = CudaAttentionGrad;
  for (ContextSizes s : kCases) {
    s.dtype = DType::kBF16;
    CheckSplit(s, chosen, kFewBf16);
    s.dtype = DType::kF16;
    CheckSplit(s, chosen, kFewF16);
  }
}

TEST_CASE("split attention does not look behind its last chunk", "[context]") {
  const DType dtype = GENERATE(DType::kF32, DType::kBF16);
  const ContextSizes s{4, 64, 2, 2, 1, 64, dtype};
  Devices devices;
  KernelTable table;
  table.attention = CudaAttention;
  table.attention_grad = CudaAttentionGrad;
  const Subject gpu{table, devices.device, *devices.stream, Backend::kCuda, 16};
  ContextCase data(s);
  for (int64_t c = 1; c < s.ranks; ++c) {
    const AttentionGradOp<TensorView> clean = data.Split(c), poisoned = data.Split(c);
    data.Poison(poisoned, (2 * s.ranks - c) * s.chunk);
    for (const AttentionGradOp<TensorView>& op : {clean, poisoned}) {
      Run(gpu, data.memory, gpu.table.attention, ContextCase::ForwardOf(op));
      Run(gpu, data.memory, gpu.table.attention_grad, op);
    }
    CAPTURE(c);
    CHECK(SameBits(clean.out, poisoned.out));
    CHECK(SameBits(clean.d_q, poisoned.d_q));
    CHECK(SameBits(clean.d_k, poisoned.d_k));
    CHECK(SameBits(clean.d_v, poisoned.d_v));
  }
}

}  // namespace
}  // namespace millrace::test
