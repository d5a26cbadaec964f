#include "tests/support/exact_kernels.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "runtime/base/error.h"
#include "runtime/base/fnv.h"
#include "runtime/base/step_scalars.h"
#include "runtime/exec/logical_tensors.h"
#include "tests/support/exact_experts.h"
#include "tests/support/exact_numbers.h"

namespace millrace::test {
namespace {

void Norm(const NormOp<TensorView>& op, Stream&) {
  ForMatrix(op.out, [&](int64_t r, int64_t c) {
    float x = At(op.x, {r, c});
    if (op.residual) x += At(op.residual, {r, c});
    if (op.sum) At(op.sum, {r, c}) = Checked(x);
    const float bias = op.bias ? At(op.bias, {c}) : 0;
    At(op.out, {r, c}) = Checked(Small(x) * At(op.weight, {c}) + bias);
  });
  for (const TensorView* statistic : {&op.mean, &op.rstd})
    if (*statistic)
      for (int64_t r = 0; r < op.out.dim(0); ++r) At(*statistic, {r}) = 0;
}

void NormGrad(const NormGradOp<TensorView>& op, Stream&) {
  const int64_t rows = op.d_out.dim(0), columns = op.d_out.dim(1);
  for (int64_t c = 0; c < columns; ++c) {
    double weight = 0, bias = 0;
    for (int64_t r = 0; r < rows; ++r) {
      weight += At(op.d_out, {r, c}) * Small(At(op.x, {r, c}));
      bias += At(op.d_out, {r, c});
    }
    op.partials.as<double>()[c] = weight;
    if (op.partials.dim(1) == 2) op.partials.as<double>()[columns + c] = bias;
  }
  ForMatrix(op.d_x, [&](int64_t r, int64_t c) {
    const float bypass = op.d_bypass ? At(op.d_bypass, {r, c}) : 0;
    At(op.d_x, {r, c}) = Checked(Small(At(op.d_out, {r, c})) + bypass);
  });
}

void NormSums(const NormSumsOp<TensorView>& op, Stream&) {
  const int64_t columns = op.d_weight.dim(0);
  const double* sums = op.partials.as<double>();
  for (int64_t c = 0; c < columns; ++c) {
    Put(op.d_weight, {c}, static_cast<float>(sums[c]), op.weight_update);
    if (op.d_bias) Put(op.d_bias, {c}, static_cast<float>(sums[columns + c]), op.bias_update);
  }
}

// As the norm of rows: a small number of x, times a weight; one weight for all of a kind of head.
void HeadNorm(const HeadNormOp<TensorView>& op, Stream&) {
  const int64_t depth = op.q_weight.dim(0), normed = (op.heads + op.kv_heads) * depth;
  ForMatrix(op.out, [&](int64_t r, int64_t c) {
    const float x = At(op.x, {r, c});
    const TensorView& weight = c < op.heads * depth ? op.q_weight : op.k_weight;
    At(op.out, {r, c}) = c < normed ? Checked(Small(x) * At(weight, {c % depth})) : x;
  });
  ForMatrix(op.rstd, [&](int64_t r, int64_t h) { At(op.rstd, {r, h}) = 0; });
}

void HeadNormGrad(const HeadNormGradOp<TensorView>& op, Stream&) {
  const int64_t depth = op.q_weight.dim(0), normed = op.heads + op.kv_heads;
  for (int64_t i = 0; i < depth; ++i) {
    float sums[2] = {};
    for (int64_t r = 0; r < op.x.dim(0); ++r)
      for (int64_t h = 0; h < normed; ++h)
        sums[h < op.heads ? 0 : 1] +=
            At(op.d_out, {r, h * depth + i}) * Small(At(op.x, {r, h * depth + i}));
    Put(op.d_q_weight, {i}, sums[0], op.q_update);
    Put(op.d_k_weight, {i}, sums[1], op.k_update);
  }
  ForMatrix(op.d_x, [&](int64_t r, int64_t c) {
    const float d_out = At(op.d_out, {r, c});
    At(op.d_x, {r, c}) = c < normed * depth ? Checked(Small(d_out)) : d_out;
  });
}

// The product is the real one; what its epilogue does to it is not.
void Matmul(const MatmulOp<TensorView>& op, Stream& stream) {
  MatmulOp<TensorView> plain = op;
  plain.pre = {};
  plain.epilogue = op.bias ? Epilogue::kBias : Epilogue::kNone;
  CpuKernels().matmul(plain, stream);
  ForMatrix(op.out, [&](int64_t r, int64_t c) {
    float& x = At(op.out, {r, c});
    Checked(x);
    if (op.epilogue == Epilogue::kGelu || op.epilogue == Epilogue::kBiasGelu) {
      if (op.pre) At(op.pre, {r, c}) = x;
      x = Small(x);
    } else if (op.epilogue == Epilogue::kGeluGrad) {
      x *= Small(At(op.pre, {r, c}));
    }
  });
}

void RopeTable(const RopeTableOp<TensorView>& op, Stream&) {
  const int64_t rows = op.table.dim(0);
  const std::array<int64_t, 2> starts = ChunkStarts(op.rows, rows);
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t i = 0; i < op.table.dim(1); ++i)
      for (int64_t part = 0; part < 2; ++part)
        At(op.table, {t, i, part}) =
            PositionOf(starts, op.rows.ranks, rows, t) % 2 == 0 ? 1.0f : -1.0f;
}

void Rope(const RopeOp<TensorView>& op, Stream&) {
  for (int64_t b = 0; b < op.x.dim(0); ++b)
    for (int64_t t = 0; t < op.x.dim(1); ++t)
      for (int64_t h = 0; h < op.x.dim(2); ++h)
        for (int64_t d = 0; d < op.x.dim(3); ++d) At(op.x, {b, t, h, d}) *= At(op.table, {t, 0, 0});
}

// Rows of queries by position, and keys where they lie.
struct Sequence {
  explicit Sequence(const TensorView& q, const ContextRows& context)
      : ranks(context.ranks), batch(q.dim(0)), rows(q.dim(1)), local(ranks * rows, -1) {
    const std::array<int64_t, 2> starts = ChunkStarts(context, rows);
    for (int64_t i = 0; i < rows; ++i)
      local[static_cast<size_t>(PositionOf(starts, ranks, rows, i))] = i;
  }
  int64_t length() const { return ranks * rows; }
  int64_t row(int64_t t) const { return local[static_cast<size_t>(t)]; }  // -1: another rank's
  float& Key(const TensorView& keys, int64_t b, int64_t t, int64_t h, int64_t d) const {
    const GatheredPlace at = PlaceOf(ranks, batch, rows, b, t);
    return At(keys, {at.outer, at.row, h, d});
  }

  int64_t ranks, batch, rows;
  std::vector<int64_t> local;
};

void Attention(const AttentionOp<TensorView>& op, Stream&) {
  MR_CHECK_EQ(op.window, 0, "exact attention sees all keys");
  const int64_t group = op.q.dim(2) / op.k.dim(2);
  const Sequence sequence(op.q, op.rows);
  for (int64_t b = 0; b < op.q.dim(0); ++b)
    for (int64_t h = 0; h < op.q.dim(2); ++h)
      for (int64_t d = 0; d < op.q.dim(3); ++d) {
        float seen = 0;
        for (int64_t t = 0; t < sequence.length(); ++t) {
          seen += sequence.Key(op.k, b, t, h / group, d) - sequence.Key(op.v, b, t, h / group, d);
          if (const int64_t i = sequence.row(t); i >= 0)
            At(op.out, {b, i, h, d}) = Small(Checked(At(op.q, {b, i, h, d}) + seen));
        }
      }
  if (!op.lse) return;
  for (int64_t b = 0; b < op.lse.dim(0); ++b)
    for (int64_t h = 0; h < op.lse.dim(1); ++h)
      for (int64_t t = 0; t < op.lse.dim(2); ++t) At(op.lse, {b, h, t}) = 0;
}

void AttentionGrad(const AttentionGradOp<TensorView>& op, Stream&) {
  const int64_t group = op.q.dim(2) / op.k.dim(2);
  const Sequence sequence(op.q, op.rows);
  for (int64_t b = 0; b < op.q.dim(0); ++b)
    for (int64_t kv = 0; kv < op.k.dim(2); ++kv)
      for (int64_t d = 0; d < op.q.dim(3); ++d) {
        float later = 0, seen = 0;
        const auto change = [&](int64_t t) {
          return sequence.Key(op.k, b, t, kv, d) - sequence.Key(op.v, b, t, kv, d);
        };
        for (int64_t t = 0; t < sequence.length(); ++t) seen += change(t);
        for (int64_t t = sequence.length(); t-- > 0; seen -= change(t)) {
          const int64_t i = sequence.row(t);
          for (int64_t h = kv * group; i >= 0 && h < (kv + 1) * group; ++h) {
            const float g = At(op.d_out, {b, i, h, d});
            At(op.d_q, {b, i, h, d}) = Small(Checked(g + seen));
            later += Small(g);
          }
          sequence.Key(op.d_k, b, t, kv, d) = Checked(later);
          sequence.Key(op.d_v, b, t, kv, d) = -later;
        }
      }
}

void Activation(const ActivationOp<TensorView>& op, Stream&) {
  const int64_t width = op.out.dim(1);
  ForMatrix(op.out, [&](int64_t r, int64_t c) {
    const float x = Small(At(op.x, {r, c}));
    At(op.out, {r, c}) = IsGated(op.kind) ? Checked(x * Up(At(op.x, {r, c + width}))) : x;
  });
}

void ActivationGrad(const ActivationGradOp<TensorView>& op, Stream&) {
  const int64_t width = op.d_out.dim(1);
  ForMatrix(op.d_out, [&](int64_t r, int64_t c) {
    const float g = At(op.d_out, {r, c}), x = Small(At(op.x, {r, c}));
    if (!IsGated(op.kind)) {
      At(op.d_x, {r, c}) = Checked(x * g);
      return;
    }
    const float up = Up(At(op.x, {r, c + width}));
    At(op.d_x, {r, c}) = up * Small(g);
    At(op.d_x, {r, c + width}) = Checked(x * g);
  });
}

void CrossEntropy(const CrossEntropyOp<TensorView>& op, Stream&) {
  const int64_t length = op.targets.dim(1);
  const int32_t* const targets =
      op.targets.as<int32_t>() + op.scalars.as<StepScalars>()->token_parity * op.parity_stride;
  double loss = 0;
  for (int64_t r = 0; r < op.logits.dim(0); ++r) {
    const int64_t row = op.row_begin.value() + r;
    const int32_t target = targets[row / length * op.targets.stride(0) + row % length];
    if (target >= 0) loss += target + Small(Checked(At(op.logits, {r, target})));
    if (op.output == LossOutput::kLossOnly) continue;
    for (int64_t v = 0; v < op.logits.dim(1); ++v) {
      float& logit = At(op.logits, {r, v});
      logit = v < op.vocab && target >= 0 ? Small(logit) - static_cast<float>(v == target) : 0;
    }
  }
  double& sum = *op.loss_sum.as<double>();
  sum = op.loss_update == Update::kAccumulate ? sum + loss : loss;
}

void AdamW(const AdamWOp<TensorView>& op, Stream&) {
  for (int64_t i = 0; i < op.master.numel(); ++i) {
    const float g = Checked(At(op.grad, {i}));
    At(op.master, {i}) -= Small(g);
    At(op.m, {i}) = Checked(At(op.m, {i}) + g);
    At(op.v, {i}) = g;
  }
}

// Matrices are made orthogonal by the real kernels. Weights go by an integer that each bit of these
// changes: 0 where nothing follows, else from -3 to 3.
void MuonUpdate(const MuonUpdateOp<TensorView>& op, Stream&) {
  for (int64_t i = 0; i < op.master.numel(); ++i) {
    const float o = At(op.ortho, {i});
    const uint32_t bits = std::bit_cast<uint32_t>(o);
    At(op.master, {i}) -= o == 0 ? 0 : static_cast<float>(bits % 7) - 3;
  }
}

KernelTable MakeTable() {
  KernelTable table = CpuKernels();
  table.norm = Norm;
  table.norm_grad = NormGrad;
  table.norm_sums = NormSums;
  table.head_norm = HeadNorm;
  table.head_norm_grad = HeadNormGrad;
  table.matmul = Matmul;
  table.rope_table = RopeTable;
  table.rope = Rope;
  table.attention = Attention;
  table.attention_grad = AttentionGrad;
  table.activation = Activation;
  table.activation_grad = ActivationGrad;
  table.cross_entropy = CrossEntropy;
  table.adamw = AdamW;
  table.muon_update = MuonUpdate;
  SetExactExperts(table);
  return table;
}

}  // namespace

const KernelTable& ExactKernels() {
  static const KernelTable table = MakeTable();
  return table;
}

void InitExactWeights(Engine& engine) {
  for (const std::string_view slot : SlotNames(engine.layout()))
    WriteLogicalTensors(engine, slot, [&](const ParamPlacement& param) {
      std::vector<float> values(static_cast<size_t>(param.spec.numel()));
      if (slot != kMasterSlot.name) return values;
      uint64_t state = Fnv1a64(param.spec.name);
      for (float& value : values) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        value = static_cast<float>((state >> 40) % 3) - 1;
      }
      return values;
    });
}

}  // namespace millrace::test
