// Llama: RMSNorm before each branch, rotary positions, grouped-query attention, SwiGLU, no biases.
// Source: arXiv 2302.13971, 2407.21783; Hugging Face transformers, LlamaForCausalLM.
#pragma once

#include <map>

#include "models/model.h"

namespace millrace {

class Llama final : public Model {
 public:
  explicit Llama(const ModelOptions& options);
  const ModelSpec& spec() const override { return spec_; }
  void EmitForward(ForwardBuilder& builder, HeadMode head) const override;

 private:
  using RopeTables = std::map<int64_t, ValueId>;  // by head_dim
  ValueId EmitBlock(ForwardBuilder& builder, ValueId x, const RopeTables& ropes,
                    int64_t layer) const;

  ModelOptions options_;
  ModelSpec spec_;
};

}  // namespace millrace
