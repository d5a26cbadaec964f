#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

struct Sizes {
  int64_t batch, length, heads, kv_heads, depth;
};

using Only = std::optional<cuda::AttentionKernel>;

// What an implementation does to the numbers between loading and storing them.
struct Arithmetic {
  double operand = 0;  // relative rounding of what enters a product: 2^-8 for bf16, 2^-11 for f16
  double tiny = 0;     // and that of what is below f16's normal numbers
  // Of the bounds that hold for f32. Tensor cores add up in another precision than the
  // order of a sum tells (products are aligned to the largest and cut off), and
  // exponentials are the hardware's.
  double f32 = 1;
};

Arithmetic ArithmeticOf(cuda::AttentionKernel kernel, DType dtype) {
  if (kernel == cuda::AttentionKernel::kOwn) return {};
  if (dtype == DType::kF16) return {.operand = 0x1p-11, .tiny = 0x1p-25, .f32 = 8};
  return {.operand = 0x1p-8, .f32 = 8};
}

// Which implementation runs the op.
template <template <class> class Op>
cuda::AttentionKernel KernelOf(const Subject& subject, const Op<TensorView>& op, Only only) {
  if (subject.backend == Backend::kCpu) return cuda::AttentionKernel::kOwn;
  const auto shape_of = [](const TensorView& view) {
    return Shape{view.layout, static_cast<bool>(view)};
  };
  return only ? *only
              : cuda::ChooseAttention(ConvertOp<Op, TensorView, Shape>(op, shape_of)).kernel;
}

// All but our own kernels in f32 want 16 bits, and strides in units of 16 bytes.
bool OnTensorCores(Only only) { return only && *only != cuda::AttentionKernel::kOwn; }

bool ByWarpgroups(Only only) {
  return only == cuda::AttentionKernel::kRows || only == cuda::AttentionKernel::kInTurn;
}

Sizes PickSizes(Random& random, int repeat, Only only) {
  // Block borders of the CPU backend (64 rows) and of usual GPU tiles, then small shapes.
  constexpr int64_t kLengths[] = {64, 65, 130, 63, 1, 0};
  const int64_t kv_heads = Pick(random, 1, 2), group = Pick(random, 1, 3);
  const int64_t length =
      repeat < static_cast<int>(std::size(kLengths)) ? kLengths[repeat] : Pick(random, 1, 40);
  const int64_t batch = length > 64 ? 1 : Pick(random, 1, 2);
  if (only == cuda::AttentionKernel::kCudnn)
    return {batch, length == 1 ? 2 : length, kv_heads * group, kv_heads, 8 * Pick(random, 1, 32)};
  if (ByWarpgroups(only))
    return {batch,
            length == 65 ? 193
                         : std::max<int64_t>(length, only == cuda::AttentionKernel::kRows ? 1 : 2),
            kv_heads * group, kv_heads, 64 * Pick(random, 1, 2)};
  if (only == cuda::AttentionKernel::kPacked)
    return {batch, length, kv_heads * group, kv_heads, 8 * Pick(random, 1, 16)};
  constexpr int64_t kDepths[] = {1, 4, 8, 16, 17, 64},
                    kCudaDepths[] = {2, 33, 40, 96, 128, 129, 200, 256};
  const int64_t depth =
      only && repeat % 2 == 0 ? kCudaDepths[Pick(random, 0, 7)] : kDepths[Pick(random, 0, 5)];
  return {batch, length, kv_heads * group, kv_heads, depth};
}

DType PickDType(Random& random, Only only) {
  return OnTensorCores(only) ? FloatOf16Bits() : PickFloat(random);
}
// Dense ones of head dimensions in eights are multiples of 16 bytes.
Strides PickHeadStrides(Random& random, Only only) {
  return OnTensorCores(only) ? Strides::kDense : PickRowStrides(random);
}

// [B,T,heads,D] views that are slices of one fused row, as a QKV projection writes
// them, or blocks of their own.
struct Qkv {
  TensorView q, k, v;
};

Qkv MakeQkv(Memory& memory, Random& random, const Sizes& s, Only only) {
  Qkv qkv;
  if (s.length > 0 && Flip(random)) {
    const int64_t width = (s.heads + 2 * s.kv_heads) * s.depth;
    const DType dtype = PickDType(random, only);
    const TensorView row =
        memory.NewRandom(random, dtype, {s.batch, s.length, width}, PickHeadStrides(random, only));
    const auto slice = [&](int64_t heads, int64_t column) {
      TensorView view = row;
      view.data += column * Bytes(dtype);
      view.layout = DenseLayout(dtype, {s.batch, s.length, heads, s.depth});
      view.layout.strides = {row.stride(0), row.stride(1), s.depth, 1};
      return view;
    };
    qkv = {slice(s.heads, 0), slice(s.kv_heads, s.heads * s.depth),
           slice(s.kv_heads, (s.heads + s.kv_heads) * s.depth)};
  } else {
    const auto make = [&](int64_t heads) {
      return memory.NewRandom(random, PickDType(random, only), {s.batch, s.length, heads, s.depth},
                              PickHeadStrides(random, only));
    };
    qkv = {make(s.heads), make(s.kv_heads), make(s.kv_heads)};
  }
  return qkv;
}

// Windows and documents.
bool HasNeither(Only only) { return only == cuda::AttentionKernel::kCudnn || ByWarpgroups(only); }

// None, those of one and of a few keys, one past a tile of keys, and one that no sequence here has.
int64_t PickWindow(Random& random, Only only) {
  constexpr int64_t kWindows[] = {0, 0, 1, 2, 7, 64, 65, 1000};
  return HasNeither(only) ? 0 : kWindows[Pick(random, 0, 7)];
}

// None, or of each row some, of one position and more.
TensorView PickDocuments(Memory& memory, Random& random, const Sizes& s, Only only) {
  if (HasNeither(only)) return {};
  if (only != cuda::AttentionKernel::kPacked && Flip(random)) return {};
  const TensorView documents = memory.New(DType::kI32, {s.batch, s.length});
  const int64_t often = Pick(random, 1, 70);
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t t = 0, begin = 0; t < s.length; ++t) {
      if (Pick(random, 0, often) == 0) begin = t;
      documents.as<int32_t>()[b * s.length + t] = static_cast<int32_t>(begin);
    }
  return documents;
}

// The first key that a query sees.
int64_t FirstKey(const TensorView& documents, int64_t b, int64_t t, int64_t window) {
  const int64_t first = window > 0 && t >= window ? t - window + 1 : 0;
  if (!documents) return first;
  return std::max<int64_t>(first, documents.as<int32_t>()[b * documents.dim(1) + t]);
}

// Scaled scores of one query row against keys first..t, with a bound on their error: D
// products, then the scale.
struct Scores {
  std::vector<double> value;  // of key first + i
  int64_t first = 0;
  double bound = 0;
  double max = -std::numeric_limits<double>::infinity(), range = 0, lse = 0;
};

template <class Op>
Scores ScoresOf(const Op& op, int64_t b, int64_t t, int64_t h) {
  const TensorView &q = op.q, &k = op.k;
  const double scale = op.scale;
  const int64_t kv = h / (q.dim(2) / k.dim(2));
  Scores scores;
  scores.first = FirstKey(op.documents, b, t, op.window);
  double min = std::numeric_limits<double>::infinity();
  for (int64_t u = scores.first; u <= t; ++u) {
    SumOf sum;
    for (int64_t d = 0; d < q.dim(3); ++d) sum.Add(Get(q, b, t, h, d) * Get(k, b, u, kv, d));
    scores.value.push_back(scale * sum.value);
    scores.bound = std::max(scores.bound, std::abs(scale) * sum.bound(3));
    scores.max = std::max(scores.max, scale * sum.value);
    min = std::min(min, scale * sum.value);
  }
  scores.range = scores.max - min;
  double sum = 0;
  for (const double s : scores.value) sum += std::exp(s - scores.max);
  scores.lse = scores.max + std::log(sum);
  return scores;
}

}  // namespace

void AttentionContract(const Subject& subject, Only only) {
  Random random(30), document_random(32);
  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    const Sizes s = PickSizes(random, repeat, only);
    const Qkv qkv = MakeQkv(memory, random, s, only);
    AttentionOp<TensorView> op{};
    op.q = qkv.q, op.k = qkv.k, op.v = qkv.v;
    // 40: scores far apart, so that the softmax saturates and a missing maximum would overflow.
    op.window = PickWindow(random, only);
    op.scale = repeat % 7 == 6 ? 40.0f : 1 / std::sqrt(static_cast<float>(s.depth));
    op.documents = PickDocuments(memory, document_random, s, only);
    op.out = memory.New(PickDType(random, only), {s.batch, s.length, s.heads, s.depth},
                        PickHeadStrides(random, only));
    op.lse = memory.New(DType::kF32, {s.batch, s.heads, s.length});
    const Arithmetic rounding = ArithmeticOf(KernelOf(subject, op, only), op.q.dtype());
    Run(subject, memory, subject.table.attention, op);

    Reference out, lse;
    const auto terms = static_cast<double>(s.length);
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t h = 0; h < s.heads; ++h) {
        for (int64_t t = 0; t < s.length; ++t) {
          const Scores scores = ScoresOf(op, b, t, h);
          const double bound = scores.bound + (terms + 8) * kU + kU * std::abs(scores.max);
          lse.push_back({scores.lse, rounding.f32 * bound});
        }
      }
    }
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t t = 0; t < s.length; ++t) {
        for (int64_t h = 0; h < s.heads; ++h) {
          const Scores scores = ScoresOf(op, b, t, h);
          // A probability is a ratio of exponentials of scores and of a sum of T terms. Before it
          // is multiplied it may be rounded as an operand, and so may be the terms of that sum.
          const double relative = 2 * scores.bound + (2 * terms + 16 + 4 * scores.range) * kU;
          for (int64_t d = 0; d < s.depth; ++d) {
            SumOf sum;
            double values = 0;
            for (int64_t u = scores.first; u <= t; ++u) {
              const double value = Get(op.v, b, u, h / (s.heads / s.kv_heads), d);
              sum.Add(std::exp(scores.value[u - scores.first] - scores.lse) * value);
              values += std::abs(value);
            }
            out.push_back({sum.value, rounding.f32 * (sum.bound() + relative * sum.magnitude) +
                                          2 * rounding.operand * sum.magnitude +
                                          2 * rounding.tiny * values});
          }
        }
      }
    }
    INFO("B " << s.batch << " T " << s.length << " H " << s.heads << " Hkv " << s.kv_heads << " D "
              << s.depth << " window " << op.window);
    CheckNear(op.lse, lse, "lse");
    CheckNear(op.out, out, "attention");
  }
}

namespace {

struct GradReference {
  Reference d_q, d_k, d_v;
};

// First-order bounds along d_s = p (d_out.v - d_out.out) scale. p and d_s enter the products; with
// grouped queries the products of each query head may be rounded again before they are added up.
GradReference ReferenceOf(const AttentionGradOp<TensorView>& op, const Sizes& s,
                          const Arithmetic& rounding) {
  const auto at = [&](int64_t heads, int64_t b, int64_t t, int64_t h, int64_t d) {
    return static_cast<size_t>(((b * s.length + t) * heads + h) * s.depth + d);
  };
  const size_t queries = static_cast<size_t>(s.batch * s.length * s.heads * s.depth);
  const size_t keys = static_cast<size_t>(s.batch * s.length * s.kv_heads * s.depth);
  std::vector<SumOf> d_q(queries), d_k(keys), d_v(keys);
  std::vector<double> d_q_error(queries), d_k_error(keys), d_v_error(keys);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t kv = h / (s.heads / s.kv_heads);
      for (int64_t t = 0; t < s.length; ++t) {
        const Scores scores = ScoresOf(op, b, t, h);
        const double lse = Get(op.lse, b, h, t);
        SumOf delta;
        for (int64_t d = 0; d < s.depth; ++d)
          delta.Add(Get(op.d_out, b, t, h, d) * Get(op.out, b, t, h, d));
        for (int64_t u = scores.first; u <= t; ++u) {
          const double score = scores.value[u - scores.first], p = std::exp(score - lse);
          const double p_error =
              p * (scores.bound + (8 + 4 * std::abs(score - lse) + 2 * std::abs(lse)) * kU);
          SumOf d_p;
          for (int64_t d = 0; d < s.depth; ++d)
            d_p.Add(Get(op.d_out, b, t, h, d) * Get(op.v, b, u, kv, d));
          const double d_s = p * (d_p.value - delta.value) * op.scale;
          const double d_s_error = op.scale * (p_error * std::abs(d_p.value - delta.value) +
                                               p * (d_p.bound(4) + delta.bound(4)));
          for (int64_t d = 0; d < s.depth; ++d) {
            const size_t q_at = at(s.heads, b, t, h, d), k_at = at(s.kv_heads, b, u, kv, d);
            d_q[q_at].Add(d_s * Get(op.k, b, u, kv, d));
            d_q_error[q_at] += (d_s_error + rounding.tiny) * std::abs(Get(op.k, b, u, kv, d));
            d_k[k_at].Add(d_s * Get(op.q, b, t, h, d));
            d_k_error[k_at] += (d_s_error + rounding.tiny) * std::abs(Get(op.q, b, t, h, d));
            d_v[k_at].Add(p * Get(op.d_out, b, t, h, d));
            d_v_error[k_at] += (p_error + rounding.tiny) * std::abs(Get(op.d_out, b, t, h, d));
          }
        }
      }
    }
  }
  const double tiny = rounding.tiny * static_cast<double>(s.heads / s.kv_heads);
  const auto expected = [&](const SumOf& sum, double error, double roundings) {
    return Expected{sum.value, rounding.f32 * (sum.bound() + error) +
                                   roundings * rounding.operand * sum.magnitude + tiny};
  };
  const double per_key = s.heads > s.kv_heads ? 2 : 1;
  GradReference reference;
  for (size_t i = 0; i < queries; ++i) reference.d_q.push_back(expected(d_q[i], d_q_error[i], 1));
  for (size_t i = 0; i < keys; ++i)
    reference.d_k.push_back(expected(d_k[i], d_k_error[i], per_key));
  for (size_t i = 0; i < keys; ++i)
    reference.d_v.push_back(expected(d_v[i], d_v_error[i], per_key));
  return reference;
}

}  // namespace

void AttentionGradContract(const Subject& subject, Only only) {
  Random random(31), document_random(33);
  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    const Sizes s = PickSizes(random, repeat, only);
    const Qkv qkv = MakeQkv(memory, random, s, only), grads = MakeQkv(memory, random, s, only);
    AttentionGradOp<TensorView> op{};
    op.q = qkv.q, op.k = qkv.k, op.v = qkv.v;
    op.d_q = grads.q, op.d_k = grads.k, op.d_v = grads.v;
    op.scale = 1 / std::sqrt(static_cast<float>(s.depth));
    op.window = PickWindow(random, only);
    op.documents = PickDocuments(memory, document_random, s, only);
    op.out = memory.New(PickDType(random, only), {s.batch, s.length, s.heads, s.depth},
                        PickHeadStrides(random, only));
    op.d_out =
        memory.NewRandom(random, PickDType(random, only), {s.batch, s.length, s.heads, s.depth},
                         PickHeadStrides(random, only));
    op.lse = memory.New(DType::kF32, {s.batch, s.heads, s.length});
    AttentionOp<TensorView> forward{};
    forward.q = op.q, forward.k = op.k, forward.v = op.v;
    forward.out = op.out, forward.lse = op.lse;
    forward.scale = op.scale;
    forward.window = op.window;
    forward.documents = op.documents;
    const Arithmetic rounding = ArithmeticOf(KernelOf(subject, op, only), op.q.dtype());
    Run(subject, memory, subject.table.attention, forward);
    const GradReference reference = ReferenceOf(op, s, rounding);
    Run(subject, memory, subject.table.attention_grad, op);
    INFO("B " << s.batch << " T " << s.length << " H " << s.heads << " Hkv " << s.kv_heads << " D "
              << s.depth << " window " << op.window);
    CheckNear(op.d_q, reference.d_q, "d_q");
    CheckNear(op.d_k, reference.d_k, "d_k");
    CheckNear(op.d_v, reference.d_v, "d_v");
  }
}

}  // namespace millrace::test
