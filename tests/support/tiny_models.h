// Models small enough to read, with sizes that divide nothing: no two of d_model, widths, rows and
// vocabulary are equal.
#pragma once

#include "models/model.h"
#include "runtime/plan/graph/forward_builder.h"

namespace millrace::test {

inline ModelOptions TinyGpt2(int64_t layers = 1) {
  ModelOptions o;
  o.family = Name(ModelFamily::kGpt2);
  o.d_model = 10;
  o.blocks = EqualBlocks(layers, {.heads = 3, .kv_heads = 3, .head_dim = 4},
                         {.width = 22, .activation = ActivationKind::kGelu});
  o.vocab = 37;
  o.seq_len = 7;
  o.tied = true;
  return o;
}

inline ModelOptions TinyLlama(int64_t layers = 1) {
  ModelOptions o = TinyGpt2(layers);
  o.family = Name(ModelFamily::kLlama);
  o.blocks = EqualBlocks(layers, {.heads = 4, .kv_heads = 2, .head_dim = 4},
                         {.width = 14, .activation = ActivationKind::kSwiglu});
  o.tied = false;
  o.rope_scaling = {.factor = 8,
                    .low_freq_factor = 1,
                    .high_freq_factor = 4,
                    .original_max_position_embeddings = 16};
  return o;
}

inline ModelOptions TinyQwen3(int64_t layers = 1) {
  ModelOptions o = TinyLlama(layers);
  o.family = Name(ModelFamily::kQwen3);
  for (BlockShape& block : o.blocks) block.Find<AttentionShape>()->qk_norm = true;
  return o;
}

// Attention without positions that sees three tokens, and MLPs of two kinds.
inline ModelOptions TinyNemotronH() {
  ModelOptions o = TinyLlama();
  o.family = Name(ModelFamily::kNemotronH);
  const AttentionShape attention{
      .heads = 4, .kv_heads = 2, .head_dim = 5, .rope = false, .window = 3};
  const MlpShape relu2{.width = 18, .activation = ActivationKind::kRelu2};
  o.blocks = {BlockShape{{attention}}, BlockShape{{relu2}}, BlockShape{{attention}},
              BlockShape{{MlpShape{.width = 14, .activation = ActivationKind::kSwiglu}}}};
  return o;
}

// The same family with four blocks of which no two are equal: of several sizes and kinds, and in
// another order.
inline ModelOptions Unequal(ModelOptions o) {
  const bool gpt2 = o.family == Name(ModelFamily::kGpt2);
  const auto mlp = [gpt2](int64_t width) {
    return MlpShape{width, gpt2 ? ActivationKind::kGelu : ActivationKind::kSwiglu};
  };
  const auto attention = [](int64_t heads, int64_t kv_heads, int64_t head_dim) {
    return AttentionShape{.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim};
  };
  o.blocks = {BlockShape{{attention(4, 2, 4), mlp(14)}}, BlockShape{{mlp(23)}},
              BlockShape{{attention(2, 1, 6)}}, BlockShape{{mlp(5), attention(1, 1, 2)}}};
  return o;
}

// The same with sizes that 2 ranks of tensor divide, and 2 of context, which take two chunks each.
inline ModelOptions Divisible(ModelOptions o) {
  o.seq_len = 8;
  for (BlockShape& block : o.blocks)
    for (auto& branch : block.branches)
      if (auto* attention = std::get_if<AttentionShape>(&branch)) {
        attention->kv_heads = attention->heads == attention->kv_heads ? 4 : 2;
        attention->heads = 4;
      }
  return o;
}

inline SemanticGraph ForwardOf(const ModelOptions& options, HeadMode mode = HeadMode::kTrainLoss,
                               DType compute = DType::kF32, DType norms = DType::kF32,
                               int64_t batch = 2) {
  const std::unique_ptr<Model> model = MakeModel(options);
  ForwardBuilder builder(model->spec(), {.batch = batch, .seq = options.seq_len}, compute, norms);
  model->EmitForward(builder, mode);
  return std::move(builder).Finish();
}

}  // namespace millrace::test
