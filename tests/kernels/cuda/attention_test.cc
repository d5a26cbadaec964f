// Attention on a GPU: the contract of the kernel table by each implementation, then what its
// small shapes do not reach: lengths of real models, gradients cut into several calls, bits
// that repeat, captured graphs.
#include "kernels/cuda/attention/attention.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "kernels/cuda/attention/attention_cudnn.h"
#include "kernels/cuda/attention/attention_own.h"
#include "kernels/ops/attention_choice.h"
#include "runtime/base/error.h"
#include "tests/kernels/contract/contract.h"
#include "tests/kernels/cuda/attention_operands.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

using cuda::AttentionKernel;

KernelTable TableOf(std::optional<AttentionKernel> kernel) {
  KernelTable table;
  const bool own = kernel == AttentionKernel::kOwn;
  table.attention = !kernel ? CudaAttention : own ? cuda::OwnAttention : cuda::CudnnAttention;
  table.attention_grad = !kernel ? CudaAttentionGrad
                         : own   ? cuda::OwnAttentionGrad
                                 : cuda::CudnnAttentionGrad;
  return table;
}

struct Gpu {
  CudaDevice device{0};
  std::unique_ptr<Stream> stream = device.MakeStream(StreamRole::kCompute);
  DeviceOperands operands{device, *stream};

  void Run(const KernelTable& table, const AttentionOps& ops) {
    table.attention(ops.forward, *stream);
    table.attention_grad(ops.grad, *stream);
    stream->Sync();
  }
};

struct ContractGpu {
  explicit ContractGpu(std::optional<AttentionKernel> kernel, int64_t alignment)
      : table(TableOf(kernel)),
        subject{table, gpu.device, *gpu.stream, Backend::kCuda, alignment} {}
  Gpu gpu;
  KernelTable table;
  Subject subject;
};

TEST_CASE("our own attention computes in f32 whatever the shape, strides and dtypes") {
  AttentionContract(ContractGpu(AttentionKernel::kOwn, 0).subject, AttentionKernel::kOwn);
}
TEST_CASE("the gradient of our own attention") {
  AttentionGradContract(ContractGpu(AttentionKernel::kOwn, 0).subject, AttentionKernel::kOwn);
}
TEST_CASE("cuDNN's attention: bf16, head dimensions in eights, any length") {
  AttentionContract(ContractGpu(AttentionKernel::kCudnn, 16).subject, AttentionKernel::kCudnn);
}
TEST_CASE("the gradient of cuDNN's attention") {
  AttentionGradContract(ContractGpu(AttentionKernel::kCudnn, 16).subject, AttentionKernel::kCudnn);
}
TEST_CASE("attention by the implementation that the shape chooses") {
  AttentionContract(ContractGpu({}, 16).subject);
  AttentionGradContract(ContractGpu({}, 16).subject);
}

// Host copies of an op that has run.
AttentionGradOp<TensorView> OnHost(DeviceOperands& operands,
                                   const AttentionGradOp<TensorView>& op) {
  AttentionGradOp<TensorView> host = op;
  AttentionGradOp<TensorView>::Visit(host, [&](TensorView& view, Access access, std::string_view) {
    if (access == Access::kScratch)
      view = {};
    else if (view)
      view = operands.OnHost(view);
  });
  return host;
}

// Rounding of what enters a product, and the factor on bounds that hold for sums in f32.
struct Arithmetic {
  double operand, f32;
};
constexpr Arithmetic kF32{0, 1}, kTensorCores{0x1p-8, 8};

// A few rows of every result against double. Rows: the first, the last, and around tile borders.
class Samples {
 public:
  Samples(const AttentionGradOp<TensorView>& op, const Arithmetic& rounding)
      : op_(op), rounding_(rounding), group_(op.q.dim(2) / op.k.dim(2)) {}

  void CheckQuery(int64_t b, int64_t t, int64_t h) {
    const int64_t depth = op_.q.dim(3), kv = h / group_;
    std::vector<double> s;
    double score_bound = 0, max = -INFINITY, min = INFINITY;
    for (int64_t u = 0; u <= t; ++u) {
      SumOf dot;
      for (int64_t d = 0; d < depth; ++d) dot.Add(Get(op_.q, b, t, h, d) * Get(op_.k, b, u, kv, d));
      s.push_back(op_.scale * dot.value);
      score_bound = std::max(score_bound, op_.scale * dot.bound(3));
      max = std::max(max, s.back()), min = std::min(min, s.back());
    }
    double sum = 0;
    for (const double score : s) sum += std::exp(score - max);
    const double lse = max + std::log(sum), terms = static_cast<double>(t + 1);
    Expect(
        Get(op_.lse, b, h, t), lse,
        rounding_.f32 * (score_bound + (terms + 8) * kU + kU * std::abs(max)) + kU * std::abs(lse),
        "lse");

    const double relative = 2 * score_bound + (2 * terms + 16 + 4 * (max - min)) * kU;
    const double delta = DeltaOf(b, t, h);
    for (int64_t d = 0; d < depth; d += 7) {
      SumOf out, d_q;
      double d_q_error = 0;
      for (int64_t u = 0; u <= t; ++u) {
        out.Add(std::exp(s[u] - lse) * Get(op_.v, b, u, kv, d));
        const double k = Get(op_.k, b, u, kv, d), d_s = ScoreGradient(s[u], b, t, h, u, delta);
        d_q.Add(d_s * k);
        d_q_error += std::abs(d_s_error_ * k);
      }
      ExpectRounded(Get(op_.out, b, t, h, d), out, relative * out.magnitude, 2, op_.out.dtype(),
                    "out");
      ExpectRounded(Get(op_.d_q, b, t, h, d), d_q, d_q_error, 1, op_.d_q.dtype(), "d_q");
    }
  }

  void CheckKey(int64_t b, int64_t u, int64_t kv) {
    const int64_t depth = op_.q.dim(3), length = op_.q.dim(1);
    std::vector<SumOf> d_k(depth), d_v(depth);
    std::vector<double> d_k_error(depth), d_v_error(depth);
    for (int64_t h = kv * group_; h < (kv + 1) * group_; ++h) {
      for (int64_t t = u; t < length; ++t) {
        double dot = 0;
        for (int64_t d = 0; d < depth; ++d) dot += Get(op_.q, b, t, h, d) * Get(op_.k, b, u, kv, d);
        const double d_s = ScoreGradient(op_.scale * dot, b, t, h, u, DeltaOf(b, t, h));
        for (int64_t d = 0; d < depth; d += 7) {
          const double q = Get(op_.q, b, t, h, d), d_out = Get(op_.d_out, b, t, h, d);
          d_k[d].Add(d_s * q);
          d_k_error[d] += std::abs(d_s_error_ * q);
          d_v[d].Add(p_ * d_out);
          d_v_error[d] += std::abs(p_error_ * d_out);
        }
      }
    }
    const double roundings = group_ > 1 ? 2 : 1;
    for (int64_t d = 0; d < depth; d += 7) {
      ExpectRounded(Get(op_.d_k, b, u, kv, d), d_k[d], d_k_error[d], roundings, op_.d_k.dtype(),
                    "d_k");
      ExpectRounded(Get(op_.d_v, b, u, kv, d), d_v[d], d_v_error[d], roundings, op_.d_v.dtype(),
                    "d_v");
    }
  }

  // The largest error in units of its bound.
  double worst = 0;
  std::string worst_name;

 private:
  double DeltaOf(int64_t b, int64_t t, int64_t h) const {
    double delta = 0;
    for (int64_t d = 0; d < op_.q.dim(3); ++d)
      delta += Get(op_.d_out, b, t, h, d) * Get(op_.out, b, t, h, d);
    return delta;
  }

  // d_s of query t and key u with score s; leaves p and the first-order errors of both.
  double ScoreGradient(double s, int64_t b, int64_t t, int64_t h, int64_t u, double delta) {
    const double lse = Get(op_.lse, b, h, t), depth = static_cast<double>(op_.q.dim(3));
    double d_p = 0, magnitude = 0;
    for (int64_t d = 0; d < op_.q.dim(3); ++d) {
      const double product = Get(op_.d_out, b, t, h, d) * Get(op_.v, b, u, h / group_, d);
      d_p += product;
      magnitude +=
          std::abs(product) + std::abs(Get(op_.d_out, b, t, h, d) * Get(op_.out, b, t, h, d));
    }
    p_ = std::exp(s - lse);
    // Operands are at most 1, so a score is a sum of D terms of at most `scale`.
    p_error_ =
        p_ * ((depth + 3) * depth * op_.scale + 8 + 4 * std::abs(s - lse) + 2 * std::abs(lse)) * kU;
    d_s_error_ = op_.scale * (p_error_ * std::abs(d_p - delta) + p_ * (depth + 4) * kU * magnitude);
    return p_ * (d_p - delta) * op_.scale;
  }

  void Expect(double got, double value, double bound, const char* name) {
    const double ratio = std::abs(got - value) / bound;
    if (ratio <= worst || std::isnan(worst)) return;  // a NaN stays
    worst = ratio;
    worst_name = fmt::format("{}: {}, expected {} within {}", name, got, value, bound);
  }
  void ExpectRounded(double got, const SumOf& sum, double error, double roundings, DType dtype,
                     const char* name) {
    const double bound =
        rounding_.f32 * (sum.bound() + error) + roundings * rounding_.operand * sum.magnitude;
    const double half_ulp = dtype == DType::kBF16 ? 0x1p-8 : kU;
    Expect(got, sum.value, bound + half_ulp * (std::abs(sum.value) + bound), name);
  }

  const AttentionGradOp<TensorView>& op_;
  Arithmetic rounding_;
  int64_t group_;
  double p_ = 0, p_error_ = 0, d_s_error_ = 0;
};

void CheckSamples(const AttentionGradOp<TensorView>& op, const Arithmetic& rounding) {
  Samples samples(op, rounding);
  Random random(7);
  const int64_t length = op.q.dim(1);
  for (const int64_t row : {int64_t{0}, int64_t{1}, int64_t{63}, int64_t{64}, int64_t{127},
                            int64_t{128}, length / 2, length - 2, length - 1}) {
    if (row < 0 || row >= length) continue;
    const int64_t b = Pick(random, 0, op.q.dim(0) - 1);
    samples.CheckQuery(b, row, Pick(random, 0, op.q.dim(2) - 1));
    samples.CheckKey(b, row, Pick(random, 0, op.k.dim(2) - 1));
  }
  INFO("error / bound = " << samples.worst << " in " << samples.worst_name);
  CHECK(samples.worst <= 1);
}

TEST_CASE("lengths of real models, against double on sampled rows") {
  const DType dtype = GENERATE(DType::kF32, DType::kBF16);
  const auto kernel = dtype == DType::kF32 ? AttentionKernel::kOwn : AttentionKernel::kCudnn;
  for (AttentionSize size : {AttentionSize{2, 1024, 12, 12, 64}, AttentionSize{1, 2048, 8, 2, 128},
                             AttentionSize{2, 1000, 6, 3, 96}, AttentionSize{1, 333, 4, 1, 256}}) {
    size.dtype = dtype;
    Gpu gpu;
    const AttentionOps ops = MakeAttention(gpu.operands, size);
    REQUIRE(cuda::ChooseAttention(ShapesOf(ops.grad)).kernel == kernel);
    gpu.Run(TableOf({}), ops);
    INFO("T " << size.length << " D " << size.depth << " " << Name(dtype));
    CheckSamples(OnHost(gpu.operands, ops.grad),
                 kernel == AttentionKernel::kOwn ? kF32 : kTensorCores);
  }
}

// |a - b| / |b|, over all elements.
double Difference(const TensorView& a, const TensorView& b) {
  double difference = 0, norm = 0;
  ForEach(a.layout, [&](const Index& i) {
    const double x = Get(a, i), y = Get(b, i);
    difference += (x - y) * (x - y);
    norm += y * y;
  });
  return std::sqrt(difference / norm);
}

void CheckClose(const AttentionGradOp<TensorView>& a, const AttentionGradOp<TensorView>& b,
                double bound) {
  CHECK(Difference(a.lse, b.lse) <= 0x1p-16);
  CHECK(Difference(a.out, b.out) <= bound);
  CHECK(Difference(a.d_q, b.d_q) <= bound);
  CHECK(Difference(a.d_k, b.d_k) <= bound);
  CHECK(Difference(a.d_v, b.d_v) <= bound);
}

// The same op with results and scratch of its own.
AttentionOps Again(DeviceOperands& operands, const AttentionOps& ops, const AttentionSize& size) {
  AttentionOps again = MakeAttention(operands, size);
  again.forward.q = again.grad.q = ops.grad.q;
  again.forward.k = again.grad.k = ops.grad.k;
  again.forward.v = again.grad.v = ops.grad.v;
  again.grad.d_out = ops.grad.d_out;
  return again;
}

// Errors of a few roundings to bf16, each at most 2^-8 of its term and of any sign: relative to all
// elements they stay well below 2^-6, while a wrong mask, scale or head does not.
constexpr double kFewRoundings = 0x1p-6;

TEST_CASE("cuDNN and our own kernels agree on the same bf16 data") {
  for (const AttentionSize& size :
       {AttentionSize{2, 256, 6, 6, 64}, AttentionSize{2, 300, 8, 2, 128},
        AttentionSize{3, 129, 6, 3, 40}}) {
    Gpu gpu;
    const AttentionOps cudnn = MakeAttention(gpu.operands, size);
    const AttentionOps own = Again(gpu.operands, cudnn, size);
    gpu.Run(TableOf(AttentionKernel::kCudnn), cudnn);
    gpu.Run(TableOf(AttentionKernel::kOwn), own);
    INFO("T " << size.length << " D " << size.depth);
    CheckClose(OnHost(gpu.operands, cudnn.grad), OnHost(gpu.operands, own.grad), kFewRoundings);
  }
}

TEST_CASE("a deterministic gradient in several calls is the gradient, by batch rows and by heads") {
  for (AttentionSize size :
       {AttentionSize{3, 4096, 12, 12, 64}, AttentionSize{1, 8192, 16, 8, 64}}) {
    Gpu gpu;
    const AttentionOps cut = MakeAttention(gpu.operands, size);
    const cuda::AttentionSlices slices = cuda::SlicesOf(ShapesOf(cut.grad));
    REQUIRE((slices.batch < size.batch || slices.kv_heads < size.kv_heads));
    size.deterministic = false;
    const AttentionOps whole = Again(gpu.operands, cut, size);
    gpu.Run(TableOf({}), cut);
    gpu.Run(TableOf({}), whole);
    CheckClose(OnHost(gpu.operands, cut.grad), OnHost(gpu.operands, whole.grad), kFewRoundings);
  }
}

bool SameResults(const AttentionGradOp<TensorView>& a, const AttentionGradOp<TensorView>& b) {
  return SameBits(a.out, b.out) && SameBits(a.lse, b.lse) && SameBits(a.d_q, b.d_q) &&
         SameBits(a.d_k, b.d_k) && SameBits(a.d_v, b.d_v);
}

TEST_CASE("deterministic: 20 runs give the same bits, at other addresses, too") {
  const auto [size, kernel] =
      GENERATE(std::pair{AttentionSize{16, 1024, 12, 12, 64}, AttentionKernel::kCudnn},
               std::pair{AttentionSize{2, 2048, 16, 4, 128}, AttentionKernel::kCudnn},
               std::pair{AttentionSize{5, 777, 6, 3, 64}, AttentionKernel::kCudnn},
               std::pair{AttentionSize{2, 777, 6, 3, 64, DType::kF32}, AttentionKernel::kOwn});
  Gpu gpu;
  const KernelTable table = TableOf(kernel);
  const AttentionOps first = MakeAttention(gpu.operands, size);
  gpu.Run(table, first);
  const AttentionGradOp<TensorView> expected = OnHost(gpu.operands, first.grad);
  const AttentionOps second = Again(gpu.operands, first, size);
  for (int run = 0; run < 20; ++run) {
    const AttentionOps& ops = run % 2 == 0 ? first : second;
    gpu.Run(table, ops);
    DeviceOperands copies(gpu.device, *gpu.stream);
    INFO("run " << run);
    REQUIRE(SameResults(OnHost(copies, ops.grad), expected));
  }
}

TEST_CASE("a captured attention replays the bits of the eager one") {
  const DType dtype = GENERATE(DType::kF32, DType::kBF16);
  const AttentionSize size{2, 200, 6, 3, 64, dtype};
  Gpu gpu;
  const KernelTable table = TableOf({});
  const AttentionOps eager = MakeAttention(gpu.operands, size);
  gpu.Run(table, eager);
  const AttentionOps captured = Again(gpu.operands, eager, size);
  gpu.device.BeginCapture(*gpu.stream);
  table.attention(captured.forward, *gpu.stream);
  table.attention_grad(captured.grad, *gpu.stream);
  const std::unique_ptr<Graph> graph = gpu.device.EndCapture(*gpu.stream);
  for (int run = 0; run < 3; ++run) graph->Launch(*gpu.stream);
  gpu.stream->Sync();
  CHECK(SameResults(OnHost(gpu.operands, captured.grad), OnHost(gpu.operands, eager.grad)));
}

TEST_CASE("the planned scratch is enough for cuDNN's plans, and not much more") {
  Gpu gpu;
  for (AttentionSize size :
       {AttentionSize{64, 1024, 12, 12, 64}, AttentionSize{16, 1024, 25, 25, 64},
        AttentionSize{8, 4096, 32, 8, 64}, AttentionSize{1, 8192, 32, 8, 128},
        AttentionSize{4, 256, 6, 6, 64}, AttentionSize{2, 2, 4, 2, 64},
        AttentionSize{3, 65, 6, 2, 8}, AttentionSize{3, 130, 6, 2, 200}}) {
    for (const bool deterministic : {true, false}) {
      size.deterministic = deterministic;
      DeviceOperands operands(gpu.device, *gpu.stream);
      const AttentionOps ops = MakeAttention(operands, size);
      INFO("B " << size.batch << " T " << size.length << " H " << size.heads << " D " << size.depth
                << ' ' << deterministic);
      const int64_t forward = cuda::CudnnBytes(ops.forward, gpu.device);
      const int64_t grad = cuda::CudnnBytes(ops.grad, gpu.device);
      CHECK(forward <= WorkspaceBytes(ShapesOf(ops.forward), Backend::kCuda));
      CHECK(grad <= WorkspaceBytes(ShapesOf(ops.grad), Backend::kCuda));
      CHECK(grad + (1 << 20) >= WorkspaceBytes(ShapesOf(ops.grad), Backend::kCuda));
    }
  }
}

TEST_CASE("forward alone writes no lse where none is asked for") {
  const DType dtype = GENERATE(DType::kF32, DType::kBF16);
  const AttentionSize size{2, 100, 4, 2, 64, dtype};
  Gpu gpu;
  const AttentionOps with = MakeAttention(gpu.operands, size);
  AttentionOps without = Again(gpu.operands, with, size);
  const TensorView lse = without.forward.lse;
  without.forward.lse = {};
  CudaAttention(with.forward, *gpu.stream);
  CudaAttention(without.forward, *gpu.stream);
  gpu.stream->Sync();
  CHECK(SameBits(gpu.operands.OnHost(with.forward.out), gpu.operands.OnHost(without.forward.out)));
  const TensorView untouched = gpu.operands.OnHost(lse);
  for (int64_t i = 0; i < untouched.bytes(); ++i) REQUIRE(untouched.data[i] == std::byte{0xff});
}

TEST_CASE("operands that cuDNN cannot take are refused by name") {
  using Catch::Matchers::Contains;
  Gpu gpu;
  const AttentionOps ops = MakeAttention(gpu.operands, {2, 100, 4, 2, 64});
  const auto message_of = [&](const AttentionGradOp<TensorView>& op) -> std::string {
    try {
      cuda::CudnnAttentionGrad(op, *gpu.stream);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kInternal);
      return error.what();
    }
    return "";
  };
  AttentionGradOp<TensorView> op = ops.grad;
  op.out.data += 2;
  CHECK_THAT(message_of(op), Contains("16 bytes"));
  op = ops.grad;
  op.scratch.layout.dims[0] = 100;
  CHECK_THAT(message_of(op), Contains("100") && Contains("scratch"));
  op = MakeAttention(gpu.operands, {2, 100, 4, 2, 64, DType::kF32}).grad;
  CHECK_THAT(message_of(op), Contains("f32") && Contains("bf16"));
}

}  // namespace
}  // namespace millrace::test
