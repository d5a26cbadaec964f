// A model of any family: an embedding, blocks of branches, each with a norm ahead of it and added
// to the residual stream, and a head. What a branch consists of is in models/blocks, by kind; what
// families differ in besides is a row of a table in stack.cc.
// Source: Radford et al. 2019 (GPT-2); arXiv 2302.13971, 2407.21783 (Llama), 2505.09388 (Qwen3),
//         2504.03624 (Nemotron-H); Hugging Face transformers.
#pragma once

#include "models/blocks/attention.h"
#include "models/model.h"

namespace millrace {

class Stack final : public Model {
 public:
  // What blocks of one kind of norm, bias and position have in common.
  struct Style {
    NormKind norm = NormKind::kRms;
    bool biases = false;             // of norms and linears
    bool learned_positions = false;  // else rotary where an attention has them
    const char* norm_name = "norm";  // "norm_1", "norm_f"
    const char* table = "embed.weight";
    const char* positions = "";  // the table of learned positions
  };
  static Style StyleOf(ModelFamily family);

  Stack(const ModelOptions& options, ModelFamily family);
  const ModelSpec& spec() const override { return spec_; }
  void EmitForward(ForwardBuilder& builder, HeadMode head) const override;

 private:
  BranchContext ContextOf(const std::string& unit) const;
  const char* HeadTable() const { return options_.tied ? style_.table : "lm_head.weight"; }
  std::vector<ParamSpec> NormParams(const std::string& name) const;
  std::vector<ParamSpec> EmbedParams() const;
  std::vector<ParamSpec> BlockParams(const BlockShape& block, const BranchContext& context) const;
  std::vector<ParamSpec> HeadParams() const;

  void AddLossInputs();
  void AddMtp();  // units, inputs and losses

  RopeTables EmitRopes(ForwardBuilder& builder) const;
  ValueId EmitNorm(ForwardBuilder& builder, ValueId x, const std::string& name,
                   const std::string& label) const;
  ValueId EmitBlock(ForwardBuilder& builder, ValueId x, const RopeTables& ropes,
                    const BlockShape& block, const BranchContext& context,
                    std::vector<ValueId>* router_stats) const;
  // `before`: the trunk's normalised output, or what the depth before gives. Gives the same.
  ValueId EmitMtp(ForwardBuilder& builder, ValueId before, const RopeTables& ropes, int64_t depth,
                  HeadMode head, std::vector<ValueId>* router_stats) const;

  ModelOptions options_;
  Style style_;
  ModelSpec spec_;
};

}  // namespace millrace
