#include "tests/kernels/cuda/attention_samples.h"

#include <fmt/core.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/attention_cudnn.h"
#include "kernels/cuda/attention/attention_own.h"
#include "tests/kernels/contract/contract.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {

using cuda::AttentionKernel;

KernelTable TableOf(std::optional<AttentionKernel> kernel) {
  KernelTable table;
  if (!kernel)
    table.attention = CudaAttention, table.attention_grad = CudaAttentionGrad;
  else if (*kernel == AttentionKernel::kOwn)
    table.attention = cuda::OwnAttention, table.attention_grad = cuda::OwnAttentionGrad;
  else if (*kernel == AttentionKernel::kPacked)
    table.attention = cuda::PackedAttention, table.attention_grad = cuda::PackedAttentionGrad;
  else if (*kernel == AttentionKernel::kRows)
    table.attention = cuda::RowsAttention, table.attention_grad = CudaAttentionGrad;
  else if (*kernel == AttentionKernel::kInTurn)
    table.attention = CudaAttention, table.attention_grad = cuda::InTurnAttentionGrad;
  else
    table.attention = cuda::CudnnAttention, table.attention_grad = cuda::CudnnAttentionGrad;
  return table;
}

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

AttentionOps Again(DeviceOperands& operands, const AttentionOps& ops, const AttentionSize& size) {
  AttentionOps again = MakeAttention(operands, size);
  again.forward.q = again.grad.q = ops.grad.q;
  again.forward.k = again.grad.k = ops.grad.k;
  again.forward.v = again.grad.v = ops.grad.v;
  again.grad.d_out = ops.grad.d_out;
  return again;
}

TensorView RowOf(TensorView view, int64_t b) {
  view.data += b * view.stride(0) * Bytes(view.dtype());
  view.layout.dims[0] = 1;
  return view;
}

bool SameResults(const AttentionGradOp<TensorView>& a, const AttentionGradOp<TensorView>& b) {
  return SameBits(a.out, b.out) && SameBits(a.lse, b.lse) && SameBits(a.d_q, b.d_q) &&
         SameBits(a.d_k, b.d_k) && SameBits(a.d_v, b.d_v);
}

namespace {

class Samples {
 public:
  Samples(const AttentionGradOp<TensorView>& op, const Arithmetic& rounding)
      : op_(op), rounding_(rounding), group_(op.q.dim(2) / op.k.dim(2)) {}

  void CheckQuery(int64_t b, int64_t t, int64_t h) {
    const int64_t depth = op_.q.dim(3), kv = h / group_;
    std::vector<double> s;
    double score_bound = 0, max = -INFINITY, min = INFINITY;
    const int64_t first = FirstKey(b, t);
    for (int64_t u = first; u <= t; ++u) {
      SumOf dot;
      for (int64_t d = 0; d < depth; ++d) dot.Add(Get(op_.q, b, t, h, d) * Get(op_.k, b, u, kv, d));
      s.push_back(op_.scale * dot.value);
      score_bound = std::max(score_bound, op_.scale * dot.bound(3));
      max = std::max(max, s.back()), min = std::min(min, s.back());
    }
    double sum = 0;
    for (const double score : s) sum += std::exp(score - max);
    const double lse = max + std::log(sum), terms = static_cast<double>(t - first + 1);
    Expect(
        Get(op_.lse, b, h, t), lse,
        rounding_.f32 * (score_bound + (terms + 8) * kU + kU * std::abs(max)) + kU * std::abs(lse),
        "lse");

    const double relative = 2 * score_bound + (2 * terms + 16 + 4 * (max - min)) * kU;
    const double delta = DeltaOf(b, t, h);
    for (int64_t d = 0; d < depth; d += 7) {
      SumOf out, d_q;
      double d_q_error = 0;
      for (int64_t u = first; u <= t; ++u) {
        const double score = s[static_cast<size_t>(u - first)];
        out.Add(std::exp(score - lse) * Get(op_.v, b, u, kv, d));
        const double k = Get(op_.k, b, u, kv, d), d_s = ScoreGradient(score, b, t, h, u, delta);
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
      for (int64_t t = u; t < length && FirstKey(b, t) <= u; ++t) {
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
  int64_t FirstKey(int64_t b, int64_t t) const {
    return op_.documents ? op_.documents.as<int32_t>()[b * op_.q.dim(1) + t] : 0;
  }

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

}  // namespace

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

}  // namespace millrace::test
