// Models small enough to read, with sizes that divide nothing: no two of d_model, widths, rows and
// vocabulary are equal.
#pragma once

#include "models/model.h"
#include "runtime/plan/graph/forward_builder.h"

namespace millrace::test {

inline ModelOptions TinyGpt2(int64_t layers = 1) {
  ModelOptions o;
  o.family = ModelFamily::kGpt2;
  o.layers = layers;
  o.d_model = 10;
  o.heads = o.kv_heads = 3;
  o.head_dim = 4;
  o.ffn = 22;
  o.vocab = 37;
  o.seq_len = 7;
  o.tied = true;
  o.activation = ActivationKind::kGelu;
  return o;
}

inline ModelOptions TinyLlama(int64_t layers = 1) {
  ModelOptions o = TinyGpt2(layers);
  o.family = ModelFamily::kLlama;
  o.heads = 4;
  o.kv_heads = 2;
  o.ffn = 14;
  o.tied = false;
  o.activation = ActivationKind::kSwiglu;
  o.rope_scaling = {.factor = 8,
                    .low_freq_factor = 1,
                    .high_freq_factor = 4,
                    .original_max_position_embeddings = 16};
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
