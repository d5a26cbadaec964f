// What ops in order take beside those that are not, on this GPU: products of the linears of GPT-2
// 124M and Llama 1B by rows, attention of whole sequences, and of rows over pages. Markdown tables
// on stdout. Operands are random, and more of them than the second cache holds are taken in turn;
// products and attention are captured into a graph, as in a step.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_kernels.h"
#include "runtime/base/cuda/launch.h"
#include "runtime/base/error.h"
#include "tests/kernels/cuda/attention_operands.h"

namespace millrace::test {
namespace {

constexpr int64_t kCacheBytes = int64_t{64} << 20;

// Median microseconds of one of `calls` calls, in a graph.
template <class Call>
double Microseconds(CudaDevice& device, Stream& stream, int calls, Call&& call) {
  call(0);
  stream.Sync();
  device.BeginCapture(stream);
  for (int i = 0; i < calls; ++i) call(i);
  const auto graph = device.EndCapture(stream);
  graph->Launch(stream);
  std::vector<double> rounds;
  for (int round = 0; round < 5; ++round) {
    const auto begin = device.MakeTimedEvent(), end = device.MakeTimedEvent();
    stream.Record(*begin);
    graph->Launch(stream);
    stream.Record(*end);
    device.SyncEvent(*end);
    rounds.push_back(1e3 * device.MillisecondsBetween(*begin, *end) / calls);
  }
  std::nth_element(rounds.begin(), rounds.begin() + 2, rounds.end());
  return rounds[2];
}

struct Linear {
  const char* name;
  int64_t out, in;
  bool bias;
};

void PrintProducts(CudaDevice& device, Stream& stream) {
  fmt::print("| product | rows | us | in order, us | / |\n|---|--:|--:|--:|--:|\n");
  for (const Linear& l :
       {Linear{"GPT-2 qkv", 2304, 768, true}, Linear{"GPT-2 proj", 768, 768, true},
        Linear{"GPT-2 fc", 3072, 768, true}, Linear{"GPT-2 fc_proj", 768, 3072, true},
        Linear{"GPT-2 head", 50304, 768, false}, Linear{"Llama qkv", 3072, 2048, false},
        Linear{"Llama proj", 2048, 2048, false}, Linear{"Llama gate_up", 16384, 2048, false},
        Linear{"Llama down", 2048, 8192, false}, Linear{"Llama head", 128256, 2048, false}})
    for (const int64_t rows : {1, 64, 8192}) {
      DeviceOperands operands(device, stream);
      const bool few = rows <= 64;
      const int copies =
          few ? static_cast<int>(std::clamp<int64_t>(kCacheBytes / (l.out * l.in * 2), 1, 64)) : 1;
      MatmulOp<Shape> shape =
          ShapesOf({DType::kBF16, DType::kBF16, rows, l.out, l.in, false, true});
      if (l.bias) {
        shape.bias = {DenseLayout(DType::kBF16, {l.out}), true};
        shape.epilogue = Epilogue::kBias;
      }
      std::vector<MatmulOp<TensorView>> ops;
      for (int i = 0; i < copies; ++i) ops.push_back(operands.Make(shape));
      double us[2];
      for (const bool in_order : {false, true}) {
        for (MatmulOp<TensorView>& op : ops) op.in_order = in_order;
        us[in_order] = Microseconds(device, stream, few ? 2 * copies + 6 : 6, [&](int i) {
          CudaKernels().matmul(ops[static_cast<size_t>(i % copies)], stream);
        });
      }
      fmt::print("| {} {} x {} | {} | {:.2f} | {:.2f} | {:.2f} |\n", l.name, l.out, l.in, rows,
                 us[0], us[1], us[1] / us[0]);
      std::fflush(stdout);
    }
}

void PrintAttention(CudaDevice& device, Stream& stream) {
  fmt::print("\n| attention | us | in order, us | / |\n|---|--:|--:|--:|\n");
  for (const AttentionSize& size :
       {AttentionSize{16, 1024, 12, 12, 64}, AttentionSize{2, 4096, 32, 8, 64},
        AttentionSize{2, 4096, 32, 8, 128}}) {
    DeviceOperands operands(device, stream);
    AttentionOp<TensorView> op = MakeAttention(operands, size).forward;
    double us[2];
    for (const bool in_order : {false, true}) {
      op.in_order = in_order;
      us[in_order] =
          Microseconds(device, stream, 4, [&](int) { CudaKernels().attention(op, stream); });
    }
    fmt::print("| {} x {}, {}/{} heads of {} | {:.1f} | {:.1f} | {:.2f} |\n", size.batch,
               size.length, size.heads, size.kv_heads, size.depth, us[0], us[1], us[1] / us[0]);
    std::fflush(stdout);
  }
}

void PrintRows(CudaDevice& device, Stream& stream) {
  fmt::print(
      "\n| a token of each over 820 cached | rows | us | in order, us | / |\n"
      "|---|--:|--:|--:|--:|\n");
  constexpr int64_t kTokens = 16, kPages = 52, kAt = 819;
  for (const AttentionSize& size : {AttentionSize{0, 0, 12, 12, 64}, AttentionSize{0, 0, 32, 8, 64},
                                    AttentionSize{0, 0, 32, 8, 128}})
    for (const int64_t rows : {1, 64}) {
      DeviceOperands operands(device, stream);
      const int64_t width = 2 * size.kv_heads * size.depth;
      CachedAttentionOp<TensorView> op;
      op.scale = 0.125f;
      op.kv_heads = size.kv_heads;
      op.length = kTokens * kPages;
      const auto random = [&](std::initializer_list<int64_t> dims) {
        return operands.Random(DenseLayout(DType::kBF16, dims));
      };
      const auto ints = [&](std::vector<int32_t> values, const Layout& layout) {
        const TensorView view = operands.New(layout);
        device.CopyFromHost(view.data, values.data(), view.bytes(), stream);
        return view;
      };
      op.q = random({rows, size.heads, size.depth});
      op.x = random({rows, width});
      op.out = random({rows, size.heads, size.depth});
      std::vector<int32_t> slots(static_cast<size_t>(rows)),
          pages(static_cast<size_t>(rows * kPages));
      std::iota(slots.begin(), slots.end(), 0);
      std::iota(pages.begin(), pages.end(), 0);
      const Layout one = DenseLayout(DType::kI32, {rows});
      op.at = ints(std::vector<int32_t>(static_cast<size_t>(rows), kAt), one);
      op.slots = ints(slots, one);
      op.pages = ints(pages, DenseLayout(DType::kI32, {rows, kPages}));
      std::vector<TensorView> caches;
      for (int i = 0; i < (rows == 1 ? 12 : 4); ++i)
        caches.push_back(random({rows * kPages, kTokens, width}));
      double us[2];
      for (const bool in_order : {false, true}) {
        op.in_order = in_order;
        us[in_order] = Microseconds(device, stream, 12, [&](int i) {
          op.cache = caches[static_cast<size_t>(i) % caches.size()];
          CudaKernels().cached_attention(op, stream);
        });
      }
      fmt::print("| {}/{} heads of {} | {} | {:.2f} | {:.2f} | {:.2f} |\n", size.heads,
                 size.kv_heads, size.depth, rows, us[0], us[1], us[1] / us[0]);
      std::fflush(stdout);
    }
}

void Run() {
  CudaDevice device(0);
  device.Attached<cuda::LaunchPolicy>().early = EarlyLaunch::kEnd;
  const std::unique_ptr<Stream> stream = device.MakeStream(StreamRole::kCompute);
  PrintProducts(device, *stream);
  PrintAttention(device, *stream);
  PrintRows(device, *stream);
}

}  // namespace
}  // namespace millrace::test

int main() {
  try {
    millrace::test::Run();
  } catch (const millrace::Error& e) {
    fmt::print(stderr, "in_order_bench: {}\n", e.what());
    return 1;
  }
}
