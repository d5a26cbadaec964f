// GPT-2: learned positions, LayerNorm before each branch, GELU, biases everywhere.
// Source: Radford et al. 2019; Hugging Face transformers, GPT2LMHeadModel.
#pragma once

#include "models/model.h"

namespace millrace {

class Gpt2 final : public Model {
 public:
  explicit Gpt2(const ModelOptions& options);
  const ModelSpec& spec() const override { return spec_; }
  void EmitForward(ForwardBuilder& builder, HeadMode head) const override;

 private:
  ValueId EmitBlock(ForwardBuilder& builder, ValueId x, int64_t layer) const;

  ModelOptions options_;
  ModelSpec spec_;
};

}  // namespace millrace
